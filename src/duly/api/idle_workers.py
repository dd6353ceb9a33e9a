"""Finds live workers that are idle although runs that they serve have been ready for long."""

import json
import threading

from duly.clock import MICROSECONDS, monotonic
from duly.core.record import RunRecord, WorkerRecord
from duly.core.served_queues import ServedQueues
from duly.core.states import OWN_SLOT_KINDS, SlotKind
from duly.core.time_text import duration
from duly.limits import UNSERVED_SECONDS
from duly.store.protocol import Store

CONFIRM_SECONDS = 7.0
"""How long a worker must stay idle while it is watched.

A worker pauses for up to 5 s after an outage before it claims, and a one-slot child ends after 3 s
without work.
"""
_LOOK_SECONDS = 0.5
_SLOT_KINDS = OWN_SLOT_KINDS - {SlotKind.SUSPECT}
"""Slot kinds of limits, suspects and other engines are excluded: their runs may wait."""

_Pair = tuple[str, str]
"""The ids of a worker and of a run that it does not claim."""


def idle_worker_problems(store: Store) -> list[str]:
    """Return a sentence for each live worker that claims nothing while a run waits for it.

    A single check proves little, because the run may be claimed a moment later. So each worker that
    is found is watched for a while.
    """
    found = _look(store)
    until = monotonic() + CONFIRM_SECONDS
    while found and monotonic() < until:
        threading.Event().wait(_LOOK_SECONDS)
        still = _look(store)
        found = {pair: text for pair, text in found.items() if pair in still}
    # One sentence per worker is enough.
    return list({worker: text for (worker, _), text in found.items()}.values())


def _look(store: Store) -> dict[_Pair, str]:
    now = store.now()
    limit = UNSERVED_SECONDS * MICROSECONDS
    ready = [run for run in store.list_oldest_ready() if now - run.due_at > limit]
    idle = [
        worker
        for worker in (store.list_workers() if ready else ())
        if worker.state == "live" and not worker.running and now - worker.started_at > limit
    ]
    full = {
        queue.name
        for queue in (store.list_queues() if idle else ())
        if queue.limit is not None and queue.running >= queue.limit
    }
    found = {}
    for ready_run in ready if idle else ():
        queue, run_id = ready_run.queue, ready_run.run_id
        run = store.get_run(run_id)
        for worker in idle:
            if run is not None and queue not in full and _serves(worker, run):
                waited = duration(now - ready_run.due_at)
                found[worker.id, run_id] = (
                    f"worker {worker.id} (pid {worker.pid} on {worker.host}) is idle, although a "
                    f"run of queue {queue!r}, which it serves, has been ready for {waited}"
                )
    return found


def _serves(worker: WorkerRecord, run: RunRecord) -> bool:
    """Return whether a worker could claim a run at once if it has a free slot."""
    is_its_queue = ServedQueues.read(worker.queues).includes(run.queue)
    is_ready = run.state == "queued" and run.lane in _SLOT_KINDS
    return is_ready and is_its_queue and run.task in json.loads(worker.tasks)
