"""The acts of operators on runs, queues and whole databases. Each is recorded with its author."""

from collections.abc import Iterable
from typing import NamedTuple

from duly.core.time_text import utc_text
from duly.store.ops.op import Facts, Phase, always, op


@op(Facts(Phase.OPERATE, "operate"))
class Cancel(NamedTuple):
    """Cancel a queued run, or ask a running run to stop.

    The answer is "cancelled", "requested", the state of a run that has ended, or None if there is
    no such run.
    """

    run_id: str
    actor: str
    reason: str = ""

    def answer(self) -> str | None:
        """Return the type of the answer."""
        raise NotImplementedError


class RescheduledRun(NamedTuple):
    """The result of a RescheduleRun."""

    done: bool
    state: str | None
    """The state of the run; None if there is no such run."""
    refusal: str = ""
    """Why the run stays as it is, if it does."""
    max_size: int | None = None
    """How many runs may wait in the queue, if the run stays as it is because the queue is full."""


def _is_any_done(_ops: object, answers: Iterable[RescheduledRun]) -> bool:
    return any(answer.done for answer in answers)


@op(Facts(Phase.OPERATE, "operate", _is_any_done))
class RescheduleRun(NamedTuple):
    """Let a queued run start at another time, with another priority, or in another queue.

    It is due after `delay`, or `at` a wall time; both are in microseconds. None changes nothing.
    """

    run_id: str
    actor: str
    reason: str = ""
    delay: int | None = None
    at: int | None = None
    priority: int | None = None
    queue: str | None = None

    def answer(self) -> RescheduledRun:
        """Return the type of the answer."""
        raise NotImplementedError


def describe_reschedule_action(op: RescheduleRun, due_at: int) -> str:
    """Return the name of a reschedule in the audit."""
    changes = [] if op.delay is None and op.at is None else [utc_text(due_at)]
    if op.priority is not None:
        changes.append(f"priority {op.priority}")
    if op.queue is not None:
        changes.append(f"queue {op.queue}")
    return f"reschedule to {', '.join(changes)}"


class RetriedRun(NamedTuple):
    """The result of an operator's action on a final run."""

    done: bool
    state: str | None
    """The state of the run; None if there is no such run."""
    held_by: str | None = None
    """The live run that has the key, if that is why the retry was refused. `state` is its state."""
    unresolved: tuple[str, ...] = ()
    """The steps that a person must resolve first, if that is why the retry was refused."""


@op(Facts(Phase.OPERATE, "operate", always))
class RetryRun(NamedTuple):
    """Queue a final run again, in its next generation."""

    run_id: str
    actor: str
    reason: str = ""
    delay: int = 0
    arguments: str | None = None
    states: tuple[str, ...] = ("failed", "interrupted", "cancelled", "succeeded")
    generation: int | None = None
    """Only retry the run if it is in this generation, so that two retries at once retry it once."""
    lane: str | None = None
    fresh_effects: bool = False
    """True if the run's external effects get other idempotency keys than before."""
    other_names: tuple[str, ...] = ()
    """The other names of the run's task. A live run under one of them may have the key."""
    from_step: str | None = None
    """Forget the results of this step and of those that began after it, so that they run again."""

    def answer(self) -> RetriedRun:
        """Return the type of the answer."""
        raise NotImplementedError


def describe_retry_action(retry: RetryRun) -> str:
    """Return the name of a retry in the audit."""
    words = "redrive" if retry.arguments is None else "edit and redrive"
    return words if retry.from_step is None else f"{words} from step {retry.from_step}"


@op(Facts(Phase.OPERATE, "operate"))
class DiscardDead(NamedTuple):
    """End a dead letter as cancelled."""

    run_id: str
    actor: str
    reason: str

    def answer(self) -> RetriedRun:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", always))
class PauseQueue(NamedTuple):
    """Pause or resume a queue."""

    queue: str
    paused: bool
    actor: str
    reason: str = ""

    def answer(self) -> None:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate", always))
class LimitQueue(NamedTuple):
    """Let at most `limit` runs of a queue run at once, over all workers. None lifts the limit."""

    queue: str
    limit: int | None
    actor: str
    reason: str = ""

    def answer(self) -> None:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class SetQueueCapacity(NamedTuple):
    """Let at most `max_size` runs of a queue wait for workers. None lifts the bound."""

    queue: str
    max_size: int | None
    actor: str
    reason: str = ""

    def answer(self) -> None:
        """Return the type of the answer."""
        raise NotImplementedError


def describe_capacity_action(capacity: SetQueueCapacity) -> str:
    """Return the name of the act in the audit."""
    if capacity.max_size is None:
        return "lift max size"
    return f"max size {capacity.max_size}"


@op(Facts(Phase.OPERATE, "operate"))
class ResetKey(NamedTuple):
    """Forget the key of a run. The answer is whether there was one."""

    task: str
    key: str
    actor: str
    run_id: str | None = None
    """Only forget the key if this run has it."""

    def answer(self) -> bool:
        """Return the type of the answer."""
        raise NotImplementedError


@op(Facts(Phase.OPERATE, "operate"))
class RecordAuditEntry(NamedTuple):
    """Record an act that changes nothing in the store, such as a deployment."""

    actor: str
    act: str
    subject: str
    reason: str = ""

    def answer(self) -> None:
        """Return the type of the answer."""
        raise NotImplementedError


class InterruptRestoredResult(NamedTuple):
    """How many runs and schedules an InterruptRestored changed."""

    runs: int
    schedules: int
    newer: int
    """The number of runs that could start now and were made after the backup. They are left alone.

    Only the last op counts them: the one that finds fewer runs than its limit."""


@op(Facts(Phase.OPERATE, "operate"))
class InterruptRestored(NamedTuple):
    """End what was live in a restored backup and may have run since the backup was made.

    Up to `limit` waiting runs end as interrupted, and schedules that came due are paused.
    """

    since: int
    """When the backup was made. Runs that were accepted later have not run since."""
    actor: str
    reason: str
    limit: int

    def answer(self) -> InterruptRestoredResult:
        """Return the type of the answer."""
        raise NotImplementedError
