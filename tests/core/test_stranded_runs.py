"""Due runs that no live worker can execute."""

import pytest

from duly.core.record import ReadyRun, WorkerRecord
from duly.core.served_queues import ServedQueues
from duly.core.stranded_runs import find_stranded_runs

WORKER = WorkerRecord("w", "live", "host", 1, 0, 0, None, 15.0, "[]", '["shop:send"]', 0)
RUN = ReadyRun("mail", "run", 0, "shop:send", "thread")


@pytest.mark.parametrize(
    ("served", "is_stranded"),
    [
        (ServedQueues(), False),
        (ServedQueues(names=("mail",)), False),
        (ServedQueues(names=("slow",)), True),
        (ServedQueues(excluded=("slow",)), False),
        (ServedQueues(excluded=("mail",)), True),
    ],
)
def test_a_run_is_stranded_if_no_worker_of_its_task_serves_its_queue(served, is_stranded):
    found = find_stranded_runs([], [WORKER._replace(queues=served.stored())], [RUN])

    assert bool(found) is is_stranded
    assert all(each.is_registered for each in found)


def test_a_run_is_stranded_if_no_live_worker_registers_its_task():
    dead = WORKER._replace(state="dead")

    (found,) = find_stranded_runs([], [dead, WORKER._replace(tasks="[]")], [RUN])

    assert not found.is_registered
