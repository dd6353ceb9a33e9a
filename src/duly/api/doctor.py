"""Checks an application and its store, and suggests a remedy for each problem."""

import json
from collections.abc import Iterable
from datetime import timedelta

from duly.api.idle_workers import idle_worker_problems
from duly.app_protocol import AppProtocol
from duly.clock import MICROSECONDS, SystemClock
from duly.core.diagnosis import Diagnosis, diagnosis_of, healthy
from duly.core.record import WorkerRecord
from duly.core.stranded_runs import find_stranded_runs
from duly.core.time_text import duration
from duly.core.why import worker_command
from duly.store.protocol import Store

_SKEW_SECONDS = 1.0


def examine(host: AppProtocol) -> list[Diagnosis]:
    """Return a diagnosis of the store, the clocks, the workers and the tasks."""
    store = host.store
    workers = [worker for worker in store.list_workers() if worker.state == "live"]
    return [
        healthy("store", store.shown_url),
        *store.diagnose(),
        _clock_skew(store),
        diagnosis_of(
            "workers",
            f"{len(workers)} live",
            bad=not workers,
            remedy=f"start one: {worker_command(host.settings.app)}",
        ),
        *_stranded(store),
        *_unserved(host.registry.names(), workers),
    ]


def health_problems(
    store: Store, *, max_age: timedelta | None, max_depth: int | None, needs_worker: bool
) -> list[str]:
    """Return why a reachable store does not get its work done. Empty if it does."""
    now = store.now()
    problems = []
    if needs_worker:
        is_live = any(worker.state == "live" for worker in store.list_workers())
        problems += _unserved_runs(store) if is_live else ["no worker is live"]
    if max_age is not None:
        limit = max_age // timedelta(microseconds=1)
        for run in store.list_oldest_ready():
            if now - run.due_at > limit:
                waited = duration(now - run.due_at)
                problems.append(f"a run of queue {run.queue!r} has been ready for {waited}")
    if max_depth is not None:
        problems += [
            f"queue {queue.name!r} has more than {max_depth} ready runs"
            for queue in store.list_queues()
            if queue.ready > max_depth and not queue.paused
        ]
    return problems


def _clock_skew(store: Store) -> Diagnosis:
    clock = SystemClock()
    before = clock.now()
    there = store.now()
    here = (before + clock.now()) / 2
    skew = there - here
    return diagnosis_of(
        "clock",
        f"the store's is {duration(abs(skew))} {'ahead of' if skew > 0 else 'behind'} this host's",
        bad=abs(skew) > _SKEW_SECONDS * MICROSECONDS,
        remedy=(
            "run NTP on both: runs become due by the clock of the store; leases depend on neither "
            "clock"
        ),
    )


def _unserved_runs(store: Store) -> list[str]:
    return [*(each.text for each in _stranded(store)), *idle_worker_problems(store)]


def _stranded(store: Store) -> list[Diagnosis]:
    found = find_stranded_runs(
        store.list_unregistered(), store.list_workers(), store.list_oldest_ready()
    )
    return [Diagnosis("task", "warning", each.sentence, each.remedy) for each in found]


def _unserved(names: Iterable[str], workers: Iterable[WorkerRecord]) -> list[Diagnosis]:
    served = {task for worker in workers for task in json.loads(worker.tasks)}
    if not served:
        return []
    return [
        Diagnosis(
            "task",
            "warning",
            f"{name} is defined here, but no live worker knows it",
            "restart the workers with this version of the code",
        )
        for name in names
        if name not in served
    ]
