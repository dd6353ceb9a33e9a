"""What the engine asks of a store: ops that write, queries that read."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from duly.core.record import (
    DeadLetterGroup,
)
from duly.errors import TransactionTooLong
from duly.store.heartbeats import Heartbeats, LivenessHandle
from duly.store.hints import HintChannel
from duly.store.ops.op import Op
from duly.store.ops.runs import Accepted, Enqueue, Settle, Settled
from duly.store.ops.steps import EndStep, SendEvent
from duly.store.ops.updates import RunUpdate
from duly.store.reads import DeadLetterFilter, Inspector
from duly.store.schema import MigratableStore

if TYPE_CHECKING:  # Programs that only enqueue need not pay for what the guard is made of.
    from duly.store.ops.guard import DeadLetterRecord, GuardedKey


class ExternalStatement(NamedTuple):
    """SQL for a connection that is not ours."""

    dialect: str
    """What the database has to be: "sqlite" or "postgresql"."""
    sql: str
    parameters: Mapping[str, Any]


Row = Sequence[Any] | None
A = TypeVar("A")
Dialogue = Generator[ExternalStatement, Row, A]
"""Yields the statements of a write one after the other and is sent the first row of each."""


class QueueCapacity(Protocol):
    """What a process knows of how full queues are."""

    def fit(self, ops: Sequence[Enqueue]) -> bool:
        """Say whether runs are known to fit, without a look; then they count from now on."""
        ...

    def forget(self) -> None:
        """Look anew: somebody has changed a queue."""
        ...


class Ledger(Protocol):
    """What the guard needs; every store is one, and Redis can be."""

    shown_url: str
    notices: list[str]

    def do(self, op: Op[A]) -> A:
        """Carry out one op of the guard, and return its answer."""
        ...

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out ops of the guard, each as a whole or not at all, and return their answers."""
        ...

    def get_key(self, key: str) -> "GuardedKey | None": ...
    def list_dead_letters(self, which: DeadLetterFilter) -> "list[DeadLetterRecord]": ...
    def list_dead_letter_groups(self, which: DeadLetterFilter) -> list[DeadLetterGroup]: ...
    def close(self) -> None: ...


class TaskTransaction(Protocol):
    """A transaction in the store's database whose writes commit with one run's completion."""

    too_long: TransactionTooLong | None
    """Why it was rolled back in the midst of its body, if it was for that."""

    @property
    def is_lost(self) -> bool:
        """Whether the connection was lost while the transaction was open."""
        ...

    @property
    def connection(self) -> Any: ...  # noqa: ANN401 - the driver's own connection, for the user
    def settle_and_commit(self, op: Settle, updates: Sequence[RunUpdate] = ()) -> Settled:
        """Write the reports of the attempt and its end, and commit all of it or nothing."""
        ...

    def record(self, op: EndStep) -> bool:
        """Write down what a step came to, as a part of the transaction."""
        ...

    def record_and_commit(self, op: EndStep) -> bool:
        """Write down what a step came to, and end the transaction with it."""
        ...

    def commit(self) -> None:
        """End the transaction with what was written on its connection, as a part of no run."""
        ...

    def rollback(self) -> None: ...


class FailingWrites(NamedTuple):
    """When (monotonic) the first and the last of the writes failed that all failed, and why."""

    since: float
    until: float
    reason: str


class Store(Inspector, HintChannel, MigratableStore, Protocol):
    """One open database."""

    url: str
    has_one_writer: bool
    """Whether all writes queue up behind each other, so that a claim best rides on a settle."""
    shown_url: str
    """Safe to print: the absolute path, or the address with its password masked."""
    notices: list[str]
    """What people should know about this database before they rely on it."""

    def do(self, op: Op[A]) -> A:
        """Carry out one op, as a whole or not at all, and return its answer."""
        ...

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops in the order of their phases, and return their answers in this order.

        Each op is carried out as a whole or not at all. Several ops may share a transaction, or
        need several: after an exception, the first of them may have been carried out. So whatever
        must be atomic is one op, and a caller with several ops must be able to repeat its call.
        """
        ...

    def submit(self, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]) -> None:
        """Carry out the ops on a thread of the store, and call `done` there."""
        ...

    def can_write_now(self) -> bool: ...
    def is_kept_waiting(self, seconds: float) -> bool: ...
    def failing_writes(self) -> FailingWrites | None:
        """Return how long all writes have failed on fresh sessions; None if one was answered."""
        ...

    def task_transaction(self, seconds: float | None = None) -> TaskTransaction:
        """Return a transaction for the body of a run, open for at most so long; None is default."""
        ...

    def live(self, worker_id: str) -> "LivenessHandle":
        """Show that this worker lives; called before it registers, by its own process."""
        ...

    def heartbeats(self) -> Heartbeats: ...
    @property
    def queue_capacity(self) -> QueueCapacity:
        """What this process knows of how full queues are."""
        ...

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as is known."""
        ...

    def enqueue_on_connection(self, op: Enqueue, *, hint: bool) -> Dialogue[Accepted]:
        """Accept a run on a connection that is not ours; it exists if its transaction commits.

        With `hint` that commit tells the workers, where the database can do it.
        """
        ...

    def send_on_connection(self, op: SendEvent, *, hint: bool) -> Dialogue[bool]:
        """Send an event on a connection that is not ours; it is sent if its transaction commits."""
        ...

    def close(self) -> None: ...
