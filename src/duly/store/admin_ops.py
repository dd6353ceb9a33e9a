"""The verbs of those who run a database as a whole."""

from typing import NamedTuple

from duly.store.ops import RetryRun


class InterruptRestored(NamedTuple):
    """After a backup was put back: end what was live in it and may have run since.

    Up to `limit` runs that wait end as interrupted, and schedules that came due are paused. Answer:
    Aside.
    """

    since: int
    """When the backup was made; what was accepted later has not run before."""
    actor: str
    reason: str
    limit: int


class InterruptRestoredResult(NamedTuple):
    """How many runs and schedules a InterruptRestored was about."""

    runs: int
    schedules: int
    newer: int
    """Runs that could start now and are left alone, since they were made after the backup.

    Counted by the last op, which finds fewer than its limit."""


class RecordAuditEntry(NamedTuple):
    """Write down what somebody did that changes nothing here, such as a deployment."""

    actor: str
    act: str
    subject: str
    reason: str = ""


class LimitQueue(NamedTuple):
    """Let at most so many runs of a queue be running at once, over all workers; None is any."""

    queue: str
    limit: int | None
    actor: str
    reason: str = ""


class SetQueueCapacity(NamedTuple):
    """Let at most so many runs of a queue wait for workers; None is any number."""

    queue: str
    max_size: int | None
    actor: str
    reason: str = ""


def describe_capacity_action(op: SetQueueCapacity) -> str:
    """Name it as an act."""
    return "lift max size" if op.max_size is None else f"max size {op.max_size}"


AdminOp = InterruptRestored | RecordAuditEntry | LimitQueue | SetQueueCapacity


def describe_retry_action(op: RetryRun) -> str:
    """Name a redrive as an act."""
    words = "redrive" if op.arguments is None else "edit and redrive"
    return words if op.from_step is None else f"{words} from step {op.from_step}"
