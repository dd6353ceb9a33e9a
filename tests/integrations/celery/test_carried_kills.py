"""Pool children that carry duly's runs, killed with -9: no run is lost, and all of them succeed."""

import pytest

from tests.integrations.carried_kills import kill_carriers
from tests.integrations.evidence import KILLS, SECONDS, keep

pytestmark = [pytest.mark.process, pytest.mark.timeout(SECONDS)]


def test_killed_pool_children_lose_no_run(tasks, start_worker, counter, store_kind):
    workers = [start_worker("--concurrency", "3")]

    document = kill_carriers(tasks, counter)

    keep("celery-carried-kills", store_kind, document, "celery", "kombu", "redis")
    assert document["broken"] == []
    assert document["kills"] == KILLS
    assert 1 <= document["attempts_lost"] <= KILLS
    assert all(worker.is_alive() for worker in workers)
