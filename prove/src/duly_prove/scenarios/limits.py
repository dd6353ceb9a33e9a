"""Processes race for slots under limits while some are killed. No limit is ever exceeded."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from duly.clock import monotonic, new_id
from duly.core.states import SlotKind
from duly.store.ops.recovery import Recover
from duly.store.ops.runs import Enqueue
from duly_prove.claimer_process import (
    CAPACITY,
    LANE,
    OTHER_TASK,
    QUEUE,
    QUEUE_LIMIT,
    TASK,
    ClaimerProcess,
    requeue_lost,
    start_claimer,
)
from duly_prove.faults import InjectedFault
from duly_prove.process_tree import pause_for, wait_for
from duly_prove.trial import Trial

CLAIMERS = 64
KILLS = 300
_BACKLOG = 60
_START_SECONDS = 60.0
_SECONDS = 1_800.0
_PAUSE_SECONDS = 0.02

Slot = tuple[str, str, int]
"""The run, the slot kind, and 1 if it took a slot or -1 if it released one."""


def limits(trial: Trial, scale: float, program: str = "duly_prove.claimer_process") -> None:
    """Kill claimers while they race until all runs have ended. Then check every transition."""
    count, kills = max(4, round(CLAIMERS * min(1.0, 4 * scale))), max(4, round(KILLS * scale))
    trial.database.record_slots()
    trial.app.queues.limit(QUEUE, QUEUE_LIMIT, actor="prove")
    until = monotonic() + _SECONDS
    with _claiming(trial, count, program) as claimers:
        while (left := _count_unfinished(trial)) or len(trial.faults) < kills:
            trial.report_progress("kills", len(trial.faults), kills)
            if len(trial.faults) < kills:
                if left < _BACKLOG:
                    trial.app.store.apply([_order(number) for number in range(_BACKLOG)])
                _kill_one(trial, claimers, program)
            if monotonic() > until:
                trial.violations.append(f"{left} runs never got a slot")
                break
            pause_for(_PAUSE_SECONDS)
    slots = trial.database.slots()
    trial.violations += exceeded(slots)
    trial.facts |= {
        "claimers": count,
        "limit_of_the_task": CAPACITY,
        "limit_of_the_queue": QUEUE_LIMIT,
        "places_taken": sum(change > 0 for *_, change in slots),
        "most_at_once": _most(slots),
    }


def _most(slots: Iterable[Slot]) -> dict[str, int]:
    """Return the maximum number of concurrently running runs, of the queue and of the task."""
    most = {"queue": 0, "task": 0}
    running = dict.fromkeys(most, 0)
    for _, lane, change in slots:
        running["queue"] += change
        running["task"] += change if lane == LANE else 0
        most = {what: max(most[what], running[what]) for what in most}
    return most


def exceeded(slots: Iterable[Slot]) -> Iterator[str]:
    """Yield where more runs were running than a limit allows (I17)."""
    most = _most(slots)
    for what, limit in (("queue", QUEUE_LIMIT), ("task", CAPACITY)):
        if most[what] > limit:
            yield f"I17: {most[what]} were running at once under the {what}'s limit of {limit}"


@contextmanager
def _claiming(trial: Trial, count: int, program: str) -> Iterator[list[ClaimerProcess]]:
    claimers: list[ClaimerProcess] = []
    try:
        for _ in range(count):
            claimers += [_start(trial, program)]
        wait_for(lambda: _are_registered(trial, claimers), _START_SECONDS, _PAUSE_SECONDS)
        yield claimers
    finally:
        for claimer in claimers:
            _end(trial, claimer)


def _start(trial: Trial, program: str) -> ClaimerProcess:
    return start_claimer(trial.starter, trial.url, trial.random.getrandbits(30), program)


def _are_registered(trial: Trial, claimers: list[ClaimerProcess]) -> bool:
    known = {worker.id for worker in trial.app.store.list_workers()}
    return all(claimer.worker_id in known for claimer in claimers)


def _kill_one(trial: Trial, claimers: list[ClaimerProcess], program: str) -> None:
    """Kill a claimer at any moment, recover it at once, and start another one."""
    victim = claimers.pop(trial.random.randrange(len(claimers)))
    _end(trial, victim)
    trial.faults.append(
        InjectedFault("kill", "claimer", victim.process.pid, victim.worker_id, took_effect=True)
    )
    claimers.append(_start(trial, program))


def _end(trial: Trial, claimer: ClaimerProcess) -> None:
    claimer.process.kill()
    claimer.process.wait()
    trial.app.store.do(Recover(claimer.worker_id, requeue_lost))


def _count_unfinished(trial: Trial) -> int:
    found = (queue for queue in trial.app.queues.list() if queue.name == QUEUE)
    return sum(queue.ready + queue.waiting + queue.running for queue in found)


def _order(number: int) -> Enqueue:
    """Two of three runs are under the task's limit. All of them are under the queue's limit."""
    if number % 3:
        return Enqueue(new_id(), TASK, QUEUE, LANE, 0, "[[],{}]")
    return Enqueue(new_id(), OTHER_TASK, QUEUE, SlotKind.THREAD, 0, "[[],{}]")
