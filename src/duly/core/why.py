"""Explains in one sentence why a run is not running.

The explanation is a pure function of what the store knows about the run.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from duly.core.concurrency_limits import key_of
from duly.core.record import AttemptRecord, LimitHolder, RunRecord, StepRecord, WorkerRecord
from duly.core.served_queues import ServedQueues
from duly.core.states import CARRIED_SLOT_KINDS, DEAD, FINAL, SlotKind, State
from duly.core.suggestions import similar
from duly.core.time_text import coarse_duration, shown_instant

_WAITS = frozenset({"sleep", "wait", "gather"})
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
    app: str | None = None
    """The application that the settings name for commands, as module:attribute."""


def why(run: RunRecord, situation: Situation) -> Reason:
    """Return the reason why a run is not running, or what it does if it is running."""
    now = situation.now
    if run.state in FINAL:
        cause = f" ({run.cause})" if run.cause else ""
        text = f"the run has ended: {run.state}{cause}, {shown_instant(run.finished_at, now)}"
        if run.state in DEAD and run.error:
            text += f"; its last error is {_first_line(run.error)}"
        if run.state != State.SUCCEEDED and situation.interrupted_in:
            text += (
                "; it was interrupted in step "
                f"{_listed([repr(name) for name in situation.interrupted_in])}, which may have had "
                f"its effect: find out, then record the answer with `duly runs resolve {run.id} "
                "--done` or `--rerun`"
            )
        elif run.state == State.INTERRUPTED:
            text += "; it may have had its effect: find out, then retry or discard the run"
        return Reason("ended", text)
    if run.state == State.RUNNING:
        return _why_running(run, situation)
    if run.expires_at is not None and run.expires_at <= now:
        return Reason(
            "expired",
            f"the run should have started before {shown_instant(run.expires_at, now)}; a worker "
            "cancels it at its next maintenance",
        )
    if run.due_at > now:
        return _why_later(run, situation)
    if situation.is_paused:
        return Reason(
            "paused",
            f"queue {run.queue!r} is paused; resume it with `duly queues resume {run.queue}`",
        )
    return _why_unclaimed(run, situation)


def current_wait(
    steps: Sequence[StepRecord], attempts: Sequence[AttemptRecord]
) -> StepRecord | None:
    """Return the step that a queued run waits in. None if its last attempt was not suspended.

    After an attempt that failed, a wait that it began may still be open.
    """
    if not attempts or attempts[-1].outcome != "suspended":
        return None
    waits = [step for step in steps if step.kind in _WAITS and not step.done]
    return waits[-1] if waits else None


def worker_command(app: str | None) -> str:
    """Return the command that starts a worker, given the application that the settings name."""
    return "duly worker module:app" if app is None else "duly worker"


def _why_running(run: RunRecord, situation: Situation) -> Reason:
    since = coarse_duration(situation.now - (run.claimed_at or situation.now))
    found = [worker for worker in situation.workers if worker.id == run.worker_id]
    place = f"worker {run.worker_id}"
    if found:
        place += f" (pid {found[0].pid} on {found[0].host})"
    if not found or found[0].state != "live":
        return Reason(
            "lost",
            f"{place} claimed the run {since} ago and is no longer live; the next live worker "
            "takes the run over",
        )
    asked = ", and cancellation was requested" if run.cancel_requested else ""
    return Reason("running", f"{place} has been running it for {since}{asked}")


def _why_later(run: RunRecord, situation: Situation) -> Reason:
    due, step, last = shown_instant(run.due_at, situation.now), situation.waits_in, situation.last
    if step is not None:
        return _why_waiting(step, situation.now)
    if last is not None and last.generation == run.generation and last.error is not None:
        return Reason(
            "backing_off",
            f"attempt {last.attempt} ended ({last.outcome}): {_first_line(last.error)}; the next "
            f"attempt is due at {due}",
        )
    return Reason("later", f"the run is due at {due}")


def _why_waiting(step: StepRecord, now: int) -> Reason:
    until = "" if step.wake_at is None else f" until {shown_instant(step.wake_at, now)}"
    match step.kind:
        case "sleep":
            return Reason("sleeping", f"the run sleeps in step {step.name!r}{until}")
        case "wait":
            event = step.awaited or step.name
            return Reason("waiting", f"the run waits for event {event!r}{until}")
        case _:
            children = len(json.loads(step.awaited or "[]"))
            runs = "1 child run" if children == 1 else f"{children} child runs"
            return Reason("waiting", f"the run waits for the end of {runs}{until}")


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
        what = (
            "the run was sent there and waits for a worker"
            if handed
            else "the run is waiting to be sent there"
        )
        return Reason("carried", f"another engine runs its task: {what}")
    serving = [w for w in knowing if ServedQueues.read(w.queues).includes(run.queue)]
    if not serving:
        served = sorted({ServedQueues.read(worker.queues).shown() for worker in knowing})
        return Reason(
            "other_queue",
            f"no live worker that knows task {run.task!r} serves queue {run.queue!r}; these "
            f"workers serve {_listed(served)}: start one with -q {run.queue}, or without -q to "
            "serve every queue",
        )
    full = _full_limit(run, situation)
    if full is not None:
        return full
    if run.lane == SlotKind.SUSPECT:
        return Reason(
            "suspect",
            "two workers died while they ran it, so the run waits for a process that runs nothing "
            "else",
        )
    busy = sum(worker.running for worker in serving)
    return Reason(
        "slots",
        f"the run is ready and waits for a free slot of {_workers(len(serving))}; {busy} runs are "
        "running there now",
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
                f"running: {_holders(held)}",
            )
    return _unknown_limit(run, situation)


def _unknown_limit(run: RunRecord, situation: Situation) -> Reason | None:
    """Return the holders of a limit whose capacity only the task's code knows, or None."""
    held = [holder for holder in situation.holders if holder.limit == "task"]
    if situation.knows_task or not held:
        return None
    key = key_of(run.lane)
    of_key = f" for key {key!r}" if key else ""
    helps = "pass --app module:attribute"
    if situation.app is not None:
        helps = f"{situation.app} does not define the task: pass --app of the application that does"
    return Reason(
        "limit",
        f"task {run.task!r} has a limit{of_key}, and {_holders(held)} held it at the time of this "
        f"check; {helps}, to see how many runs the limit allows",
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
        f"{what} on {situation.store}; start one with `{worker_command(situation.app)}`; if a "
        "worker is running, it uses another store: compare the store that it prints when it starts",
    )


def _not_registered(task: str, workers: Sequence[WorkerRecord], store: str) -> Reason:
    known = sorted({name for worker in workers for name in _names(worker.tasks)})
    meant = similar(task.replace(":", ".").rpartition(".")[2], known) or known
    hint = f"live workers know {_listed(meant)}" if known else "live workers know no task"
    return Reason(
        "not_registered",
        f"no live worker knows task {task!r} on {store}; {hint}: import the module of the task in "
        "the worker, or keep the old name of a renamed task with @app.task(aliases=(…,))",
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
