"""What is good and what is not about an application and its store, each with its remedy."""

import json
from collections.abc import Iterable
from datetime import timedelta

from duly.api.unclaimed import leave_runs_unclaimed
from duly.clock import MICROSECONDS, SystemClock
from duly.core.finding import Finding, good, judged
from duly.core.record import WorkerRecord
from duly.host import Host
from duly.store.protocol import Store

_SKEW_SECONDS = 1.0


def examine(host: Host) -> list[Finding]:
    """Look at the store, the clocks, the workers and the tasks."""
    store = host.store
    now = store.now()
    workers = [worker for worker in store.list_workers() if worker.is_heard_of(now)]
    return [
        good("store", store.shown_url),
        *store.diagnose(),
        _clock_skew(store),
        judged(
            "workers",
            f"{len(workers)} live",
            bad=not workers,
            remedy="start one: duly worker module:app",
        ),
        *_unregistered(store.list_unregistered()),
        *_unserved(host.registry.names(), workers),
    ]


def unfit(
    store: Store, *, max_age: timedelta | None, max_depth: int | None, needs_worker: bool
) -> list[str]:
    """Return why a store that answers does not do its work; nothing if it does."""
    now = store.now()
    problems = []
    if needs_worker:
        is_live = any(worker.is_heard_of(now) for worker in store.list_workers())
        problems += leave_runs_unclaimed(store) if is_live else ["no worker is live"]
    if max_age is not None:
        limit = max_age // timedelta(microseconds=1)
        for queue, _, due_at in store.list_oldest_ready():
            if now - due_at > limit:
                waited = (now - due_at) / MICROSECONDS
                problems.append(f"a run of queue {queue!r} has been ready for {waited:.0f} s")
    if max_depth is not None:
        problems += [
            f"queue {queue.name!r} has more than {max_depth} ready runs"
            for queue in store.list_queues()
            if queue.ready > max_depth and not queue.paused
        ]
    return problems


def _clock_skew(store: Store) -> Finding:
    clock = SystemClock()
    before = clock.now()
    there = store.now()
    here = (before + clock.now()) / 2
    skew = (there - here) / MICROSECONDS
    return judged(
        "clock",
        f"the store's is {abs(skew):.3f} s {'ahead of' if skew > 0 else 'behind'} this host's",
        bad=abs(skew) > _SKEW_SECONDS,
        remedy="run NTP on both: runs become due by the store's clock, and leases need neither",
    )


def _unregistered(tasks: Iterable[str]) -> list[Finding]:
    return [
        Finding(
            "task",
            "warning",
            f"runs of {task} wait, and no live worker registers it",
            "start a worker that imports its module, or carry a rename with aliases=(…,)",
        )
        for task in tasks
    ]


def _unserved(names: Iterable[str], workers: Iterable[WorkerRecord]) -> list[Finding]:
    served = {task for worker in workers for task in json.loads(worker.tasks)}
    if not served:
        return []
    return [
        Finding(
            "task",
            "warning",
            f"{name} is defined here, and no live worker registers it",
            "restart the workers with this version of the code",
        )
        for name in names
        if name not in served
    ]
