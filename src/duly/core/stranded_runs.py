"""Finds due runs that no live worker can run. A pure function, so that all monitors agree."""

import json
from collections.abc import Iterable
from typing import NamedTuple

from duly.core.record import ReadyRun, UnregisteredRuns, WorkerRecord
from duly.core.served_queues import ServedQueues
from duly.core.states import CARRIED_SLOT_KINDS
from duly.limits import COUNT_CAP


class StrandedRuns(NamedTuple):
    """Due runs of one task in one queue that no live worker can run."""

    task: str
    queue: str
    runs: int
    """Counted up to COUNT_CAP + 1. At least one, where only the oldest run was read."""
    is_registered: bool
    """True if a live worker registers the task but serves other queues."""

    @property
    def sentence(self) -> str:
        """A sentence that says which runs wait, and why."""
        if self.is_registered:
            return (
                f"runs of {self.task} wait in queue {self.queue!r}, and no live worker that knows "
                "the task serves this queue"
            )
        count = f"{COUNT_CAP:,}+" if self.runs > COUNT_CAP else f"{self.runs:,}"
        runs = f"{count} run{'s' * (self.runs != 1)} of {self.task}"
        wait = "wait" if self.runs != 1 else "waits"
        return f"{runs} {wait} in queue {self.queue!r}, and no live worker knows the task"

    @property
    def remedy(self) -> str:
        """A remedy that the operator can apply."""
        if self.is_registered:
            return f"start a worker with -q {self.queue}, or without -q to serve every queue"
        return (
            "start a worker that imports the module of the task, or keep the old name of a renamed "
            "task with aliases=(…,)"
        )


def find_stranded_runs(
    unregistered: Iterable[UnregisteredRuns],
    workers: Iterable[WorkerRecord],
    oldest: Iterable[ReadyRun],
) -> list[StrandedRuns]:
    """Return the due runs that none of these workers can run, by task and queue.

    Maintenance in a live worker parks the runs of tasks that no worker registers. For the other
    tasks, the oldest run of each queue is enough: a run that no worker takes becomes the oldest.
    """
    parked = [StrandedRuns(*each, is_registered=False) for each in unregistered]
    known = {(each.task, each.queue) for each in parked}
    fleet = _fleet(workers)
    ready = []
    for run in oldest:
        # Another engine runs the runs that it carries.
        if run.lane in CARRIED_SLOT_KINDS or (run.task, run.queue) in known:
            continue
        queues = [served for served, tasks in fleet if run.task in tasks]
        if not any(served.includes(run.queue) for served in queues):
            ready.append(StrandedRuns(run.task, run.queue, 1, is_registered=bool(queues)))
    return parked + ready


def _fleet(workers: Iterable[WorkerRecord]) -> list[tuple[ServedQueues, frozenset[str]]]:
    """Return the queues and tasks of live workers. Workers that are alike are listed once."""
    kinds = {(worker.queues, worker.tasks) for worker in workers if worker.state == "live"}
    return [(ServedQueues.read(own), frozenset(json.loads(tasks))) for own, tasks in kinds]
