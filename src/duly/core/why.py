"""Explains in one sentence why a run is not running.

The explanation is a pure function of what the store knows about the run.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from duly.core.concurrency_limits import key_of
from duly.core.instants import duration_text, shown_instant
from duly.core.record import AttemptRecord, LimitHolder, RunRecord, StepRecord, WorkerRecord
from duly.core.served_queues import ServedQueues
from duly.core.states import CARRIED_SLOT_KINDS, FINAL, SlotKind, State
from duly.core.suggestions import similar

_NAMED = 3
"""The number of names that are listed in full."""


class Reason(NamedTuple):
    """Why a run is in its situation: one word for programs, one sentence for people."""

    cause: str
    sentence: str

    def __str__(self) -> str:
        """Return the sentence."""
        return self.sentence


class Situation(NamedTuple):
    """The facts that explain why a run waits."""

    now: int
    store: str
    """The absolute path, or the address with its password masked. Safe to print."""
    workers: Sequence[WorkerRecord]
    is_paused: bool
    """True if the run's queue is paused."""
    waits_in: StepRecord | None
    """The step that the body waits in."""
    last: AttemptRecord | None
    """The attempt that ended last."""
    limit: int | None = None
    """The maximum number of runs of its task or key that may be running at once."""
    knows_task: bool = True
    """True if the caller knows the run's task, and therefore its limit."""
    holders: Sequence[LimitHolder] = ()
    """The running runs that count against the run's limits."""
    interrupted_in: Sequence[str] = ()
    """The names of steps that must not start twice and had started when the last attempt ended."""


def why(run: RunRecord, situation: Situation) -> Reason:
    """Return the reason why a run is not running, or what it does if it is running."""
    now = situation.now
    if run.state in FINAL:
        cause = f" ({run.cause})" if run.cause else ""
        text = f"it has ended: {run.state}{cause}, {shown_instant(run.finished_at, now)}"
        if run.state != State.SUCCEEDED and situation.interrupted_in:
            text += (
                f"; it was in step {_listed([repr(name) for name in situation.interrupted_in])}, "
                f"which may have had its effect: find out, then say so with "
                f"`duly runs resolve {run.id} --done` or `--rerun`"
            )
        elif run.state == State.INTERRUPTED:
            text += "; it may have had its effect: find out, then retry it or discard it"
        return Reason("ended", text)
    if run.state == State.RUNNING:
        return _why_running(run, situation)
    if run.expires_at is not None and run.expires_at <= now:
        return Reason(
            "expired",
            f"it was to start before {shown_instant(run.expires_at, now)}; a worker's next upkeep "
            f"cancels it",
        )
    if run.due_at > now:
        return _why_later(run, situation)
    if situation.is_paused:
        return Reason(
            "paused", f"queue {run.queue!r} is paused; `duly queues resume {run.queue}` goes on"
        )
    return _why_unclaimed(run, situation)


def _why_running(run: RunRecord, situation: Situation) -> Reason:
    since = duration_text(situation.now - (run.claimed_at or situation.now))
    found = [worker for worker in situation.workers if worker.id == run.worker_id]
    place = f"worker {run.worker_id}"
    if found:
        place += f" (pid {found[0].pid} on {found[0].host})"
    if not found or found[0].state != "live":
        return Reason(
            "lost",
            f"{place} claimed it {since} ago and is not live any more; the next worker that is "
            f"takes the run over",
        )
    asked = ", and was asked to cancel it" if run.cancel_requested else ""
    return Reason("running", f"{place} has had it for {since}{asked}")


def _why_later(run: RunRecord, situation: Situation) -> Reason:
    due, step, last = shown_instant(run.due_at, situation.now), situation.waits_in, situation.last
    if step is not None:
        return _why_waiting(step, situation.now)
    if last is not None and last.generation == run.generation and last.error is not None:
        return Reason(
            "backing_off",
            f"attempt {last.attempt} ended {last.outcome} ({_first_line(last.error)}); "
            f"it is tried again at {due}",
        )
    return Reason("later", f"it is due at {due}")


def _why_waiting(step: StepRecord, now: int) -> Reason:
    until = "" if step.wake_at is None else f" until {shown_instant(step.wake_at, now)}"
    match step.kind:
        case "sleep":
            return Reason("sleeping", f"it sleeps in step {step.name!r}{until}")
        case "wait":
            event = step.awaited or step.name
            return Reason("waiting", f"it waits for event {event!r}{until}")
        case _:
            children = len(json.loads(step.awaited or "[]"))
            runs = "1 child run" if children == 1 else f"{children} child runs"
            return Reason("waiting", f"it waits for the end of {runs}{until}")


def _why_unclaimed(run: RunRecord, situation: Situation) -> Reason:
    """Return the reason why a due run that may run has not been claimed."""
    live = [worker for worker in situation.workers if worker.state == "live"]
    if not live:
        return _no_worker(situation)
    knowing = [worker for worker in live if run.task in _names(worker.tasks)]
    if not knowing:
        return _not_registered(run.task, live, situation.store)
    if run.lane in CARRIED_SLOT_KINDS:
        handed = run.lane in {SlotKind.HANDED, SlotKind.HANDED_HOLD}
        what = "it was handed over, and waits for a worker there" if handed else "it is handed over"
        return Reason("carried", f"another engine carries its task: {what}")
    serving = [w for w in knowing if ServedQueues.read(w.queues).includes(run.queue)]
    if not serving:
        served = sorted({ServedQueues.read(worker.queues).shown() for worker in knowing})
        return Reason(
            "other_queue",
            f"no live worker that knows task {run.task!r} serves queue {run.queue!r}; they serve "
            f"{_listed(served)}: start one with -q {run.queue}, or without -q for every queue",
        )
    full = _full_limit(run, situation)
    if full is not None:
        return full
    if run.lane == SlotKind.SUSPECT:
        return Reason(
            "suspect",
            "workers died under it twice, so it waits for a process in which it runs alone",
        )
    busy = sum(worker.running for worker in serving)
    return Reason(
        "slots",
        f"it is ready and waits for a free slot of {_workers(len(serving))}; {busy} runs are "
        f"running there now",
    )


def _full_limit(run: RunRecord, situation: Situation) -> Reason | None:
    """Return the full limit that holds a run back and its holders, or None."""
    for whose in ("queue", "task"):
        held = [holder for holder in situation.holders if holder.limit == whose]
        capacity = situation.limit if whose == "task" else held[0].capacity if held else None
        if capacity is not None and len(held) >= capacity:
            key = key_of(run.lane) if whose == "task" else ""
            name = {"queue": run.queue, "task": run.task}[whose]
            of_key = f" and key {key!r}" if key else ""
            return Reason(
                "limit",
                f"the limit of {whose} {name!r}{of_key} is full: {len(held)} of {capacity} are "
                f"running, {_holders(held)}",
            )
    return _unknown_limit(run, situation)


def _unknown_limit(run: RunRecord, situation: Situation) -> Reason | None:
    """Return the holders of a limit whose capacity only the task's code knows, or None."""
    held = [holder for holder in situation.holders if holder.limit == "task"]
    if situation.knows_task or not held:
        return None
    key = key_of(run.lane)
    of_key = f" for key {key!r}" if key else ""
    return Reason(
        "limit",
        f"task {run.task!r} has a limit{of_key}, which {_holders(held)} held when this was asked; "
        f"with --app module:attribute it is known how many may",
    )


def _holders(held: Sequence[LimitHolder]) -> str:
    return _listed([f"run {one.run_id} (worker {one.worker_id})" for one in held])


def _no_worker(situation: Situation) -> Reason:
    what = "no worker has been seen"
    if situation.workers:
        latest = max(worker.seen_at for worker in situation.workers)
        what = f"no worker has been seen since {shown_instant(latest, situation.now)}"
    return Reason(
        "no_worker",
        f"{what} on {situation.store}; start one with `duly worker module:app`; if one is "
        f"running, it uses another store than this: it prints which when it starts",
    )


def _not_registered(task: str, workers: Sequence[WorkerRecord], store: str) -> Reason:
    known = sorted({name for worker in workers for name in _names(worker.tasks)})
    meant = similar(task.replace(":", ".").rpartition(".")[2], known) or known
    hint = f"they know {_listed(meant)}" if known else "they know no task"
    return Reason(
        "not_registered",
        f"no live worker registers task {task!r} on {store}; {hint}: let the worker import the "
        f"module that defines it, or carry a rename with @app.task(aliases=(…,))",
    )


def _names(stored: str) -> list[str]:
    found: list[str] = json.loads(stored)
    return found


def _listed(names: Sequence[str]) -> str:
    rest = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + rest


def _workers(count: int) -> str:
    return "1 live worker" if count == 1 else f"{count} live workers"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
