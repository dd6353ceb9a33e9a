"""The part of a store on a caller's connection that needs no other threads or processes."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from duly.errors import StoreRefused
from duly.store.ops.op import Op
from duly.store.ops.runs import Enqueue
from duly.store.protocol import FailingWrites

A = TypeVar("A")


class ExternalConnectionProvider(Protocol):
    """Lends the driver's own connection for a short time."""

    def reading(self) -> AbstractContextManager[Any]:
        """Lend the connection as it is."""
        ...

    def writing(self) -> AbstractContextManager[Any]:
        """Lend the connection with a new transaction, or with a savepoint in one that is open."""
        ...


class _OpWriter(Protocol):
    def apply(self, ops: Sequence[Op[A]]) -> list[A]: ...


class SingleProcessStore:
    """The methods for other threads and processes, in a store that is used by only one of each."""

    def submit(
        self: _OpWriter, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]
    ) -> None:
        """Write the ops at once, in the caller's thread."""
        try:
            answers = self.apply(ops)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            done(error)
        else:
            done(answers)

    def failing_writes(self) -> FailingWrites | None:
        """Return None. There are no sessions to open."""
        return None

    def is_kept_waiting(self, seconds: float) -> bool:  # noqa: ARG002 - as a store's
        """Return False. There is no other writer."""
        return False

    def can_write_now(self) -> bool:
        """Return True. There is no other writer."""
        return True

    def task_transaction(self, seconds: float | None = None) -> Any:  # noqa: ANN401, ARG002 - as a store's
        """Refuse, since the connection already has its transaction."""
        raise StoreRefused(
            "transaction=True does not work on an external connection; use a store that opens its "
            "own connections"
        )

    def wake(self, *_ops: Enqueue) -> None:
        """Do nothing. There is no other process to wake."""

    def hears_hints(self) -> bool:
        """Return True. There are no hints to miss."""
        return True

    def disconnect(self) -> None:
        """Do nothing: the connection belongs to the caller."""

    def close(self) -> None:
        """Do nothing. The caller that opened the connection also closes it."""
