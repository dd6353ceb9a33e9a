"""Work-horses that carry duly's runs are killed: no run is lost, and all of them succeed."""

import pytest

from tests.integrations.carried_kills import kill_carriers
from tests.integrations.evidence import KILLS, SECONDS, WHERE, keep

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]


@pytest.mark.usefixtures("handing_over")
@WHERE
def test_killed_work_horses_lose_no_run(tasks, start_worker, counter, store_kind):
    workers = [start_worker(), start_worker()]

    document = kill_carriers(tasks, counter)

    keep("rq-carried-kills", store_kind, document, "rq", "redis")
    assert document["broken"] == []
    assert document["kills"] == KILLS
    assert 1 <= document["attempts_lost"] <= KILLS
    assert all(worker.is_alive() for worker in workers)
