"""The interface of a store for the engine: ops that write, queries that read."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

from duly.core.record import (
    DeadLetterGroup,
)
from duly.store.heartbeats import Heartbeats, LivenessHandle
from duly.store.hints import HintChannel
from duly.store.ops.op import Op
from duly.store.ops.runs import Accepted, Enqueue
from duly.store.ops.steps import SendEvent
from duly.store.reads import DeadLetterFilter, Inspector
from duly.store.schema import MigratableStore

if TYPE_CHECKING:  # Programs that only enqueue do not load the modules of the guard and of tasks.
    from duly.store.ops.guard import DeadLetterRecord, GuardedKey
    from duly.store.task_transaction import TaskTransaction


class ExternalStatement(NamedTuple):
    """SQL for the caller's own connection."""

    dialect: str
    """The required kind of database: "sqlite" or "postgresql"."""
    sql: str
    parameters: Mapping[str, Any]


Row = Sequence[Any] | None
A = TypeVar("A")
Dialogue = Generator[ExternalStatement, Row, A]
"""Yields the statements of a write one after another, and receives the first row of each."""


class QueueCapacity(Protocol):
    """A process's knowledge of the sizes of queues."""

    def fit(self, ops: Sequence[Enqueue]) -> bool:
        """Return whether runs are known to fit, without a read. If so, they count from now on."""
        ...

    def forget(self) -> None:
        """Forget all sizes, since a queue was changed."""
        ...


class Ledger(Protocol):
    """The interface that the guard needs. Every store provides it, and Redis can provide it too."""

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


class FailingWrites(NamedTuple):
    """The first and the last of a series of failed writes (monotonic times), and the reason."""

    since: float
    until: float
    reason: str


class Store(Inspector, HintChannel, MigratableStore, Protocol):
    """One open database."""

    url: str
    has_one_writer: bool
    """Whether writes wait for each other, so that a claim should share a commit with a settle."""
    shown_url: str
    """Safe to print: the absolute path, or the address with its password masked."""
    notices: list[str]
    """Warnings about this database for operators."""

    def do(self, op: Op[A]) -> A:
        """Carry out one op, as a whole or not at all, and return its answer."""
        ...

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out ops in the order of their phases, and return the answers in the order of `ops`.

        Each op is carried out as a whole or not at all. Several ops may share a transaction, or
        need several transactions. Then the first ops may have been carried out before an exception.
        So an atomic change must be one op, and a caller with several ops must be able to repeat its
        call.
        """
        ...

    def submit(self, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]) -> None:
        """Carry out the ops on a thread of the store, and call `done` there."""
        ...

    def can_write_now(self) -> bool: ...
    def is_kept_waiting(self, seconds: float) -> bool: ...
    def failing_writes(self) -> FailingWrites | None:
        """Return how long all writes on new sessions have failed; None if one was answered."""
        ...

    def task_transaction(self, seconds: float | None = None) -> "TaskTransaction":
        """Return a transaction for a task, limited to `seconds` or to the driver's default."""
        ...

    def live(self, worker_id: str) -> "LivenessHandle":
        """Mark this worker as live. Its own process calls this before the worker registers."""
        ...

    def heartbeats(self) -> Heartbeats: ...
    @property
    def queue_capacity(self) -> QueueCapacity:
        """This process's knowledge of the sizes of queues."""
        ...

    def check_queue_capacity(self, ops: Sequence[Enqueue]) -> None:
        """Raise QueueFull if runs do not fit into their queues, as far as this process knows."""
        ...

    def enqueue_on_connection(self, op: Enqueue, *, hint: bool) -> Dialogue[Accepted]:
        """Accept a run on the caller's connection. It exists if that transaction commits.

        With `hint`, the commit also wakes workers, if the database supports this.
        """
        ...

    def send_on_connection(self, op: SendEvent, *, hint: bool) -> Dialogue[bool]:
        """Send an event on the caller's connection. It is sent if that transaction commits."""
        ...

    def disconnect(self) -> None:
        """Close connections that nothing uses now, except the one for heartbeats."""
        ...

    def close(self) -> None: ...
