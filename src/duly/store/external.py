"""What a store on a connection of somebody else's does without: other processes see none of it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

from duly.errors import StoreRefused
from duly.store.ops.op import Op
from duly.store.ops.runs import Enqueue
from duly.store.protocol import FailingWrites

A = TypeVar("A")


class ExternalConnectionProvider(Protocol):
    """Lends the driver's own connection for a moment."""

    def reading(self) -> AbstractContextManager[Any]:
        """Lend it as it is."""
        ...

    def writing(self) -> AbstractContextManager[Any]:
        """Lend it with a transaction open on it, or a savepoint in one that was open before."""
        ...


class _OpWriter(Protocol):
    def apply(self, ops: Sequence[Op[A]]) -> list[A]: ...


class SingleProcessStore:
    """The part of a store that is about other threads and processes, where there are none."""

    def submit(
        self: _OpWriter, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]
    ) -> None:
        """Write the ops here and now."""
        try:
            answers = self.apply(ops)
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            done(error)
        else:
            done(answers)

    def failing_writes(self) -> FailingWrites | None:
        """Return None: there are no sessions to open."""
        return None

    def is_kept_waiting(self, seconds: float) -> bool:  # noqa: ARG002 - as a store's
        """Return False: nobody else writes."""
        return False

    def can_write_now(self) -> bool:
        """Say yes: nobody else writes."""
        return True

    def task_transaction(self, seconds: float | None = None) -> Any:  # noqa: ANN401, ARG002 - as a store's
        """Refuse: the connection has its transaction already."""
        raise StoreRefused(
            "transaction=True does not work on an external connection; use a store that opens its "
            "own connections"
        )

    def wake(self, *_ops: Enqueue) -> None:
        """Tell nobody."""

    def hears_hints(self) -> bool:
        """Say yes: there are none to be missed."""
        return True

    def close(self) -> None:
        """Leave the connection to whoever opened it."""
