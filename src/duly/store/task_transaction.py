"""The transaction of a task, which commits together with the end of its run, or not at all.

A driver opens the transaction on one kind of connection: SQLite's, PostgreSQL's or Django's.
Everything else is the same for all drivers, and is written here.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol

from duly import faultpoints
from duly.errors import DulyError, StoreUnavailable, TransactionTooLong
from duly.interrupts import defer_interrupts
from duly.store.ops.op import AnyOp
from duly.store.ops.runs import Settle, Settled
from duly.store.ops.steps import EndStep
from duly.store.ops.updates import RunUpdate
from duly.store.outage_wait import retry_during_outage
from duly.store.transaction import Transaction
from duly.store.verbs.verb import carry_out

_LOOK_SECONDS = 0.02
_LOST = (
    "the connection was lost while this run's transaction was open, so the transaction was rolled "
    "back; the run can run again"
)


class DriverTransaction(Protocol):
    """A transaction that a driver has opened. All errors are duly's own."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 - the driver's own connection, for the task
        ...

    @property
    def is_lost(self) -> bool:
        """True if the connection to the database was lost."""
        ...

    def record(self, op: EndStep) -> bool:
        """Carry out an op while the task continues to use the connection."""
        ...

    def take_back(self) -> None:
        """Make further calls of the task fail, and wait for the call that is in progress."""
        ...

    def expire(self, why: TransactionTooLong) -> None:
        """Roll back while the task may be in a call, and make its further calls fail."""
        ...

    def apply(self, ops: Sequence[AnyOp]) -> list[Any]:
        """Carry out ops after `take_back`. Raise if the task itself has ended the transaction."""
        ...

    def commit(self, op: AnyOp | None) -> None:
        """Commit. If the reply is lost, find out by the last op whether it took effect."""
        ...

    def close(self) -> None:
        """Roll back what is not committed, and release the connection. Safe after `expire`."""
        ...


class TaskTransactionDriver(Protocol):
    """Opens transactions on one kind of connection."""

    @property
    def database(self) -> str:
        """The database, as error messages show it."""
        ...

    @property
    def limit_seconds(self) -> float:
        """How long a transaction may be open, unless its task sets a limit."""
        ...

    def begin(self, seconds: float) -> DriverTransaction | None:
        """Open a transaction of at most `seconds`. Return None if all connections are in use."""
        ...


class TaskTransaction:
    """A transaction that begins at the first use of its connection.

    A timer rolls it back at its limit, even while the task uses the connection.
    """

    def __init__(
        self,
        driver: TaskTransactionDriver,
        seconds: float | None,
        *,
        writing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Prepare a transaction, during which the thread or the timer is inside `writing()`."""
        self._driver = driver
        self._seconds = driver.limit_seconds if seconds is None else seconds
        self._writing = writing
        self._open: DriverTransaction | None = None
        self._write_lock = ExitStack()
        self._timer: threading.Timer
        self._ending = threading.Lock()
        """Held by the thread that ends the transaction: the task's or the timer's."""
        self._too_long: TransactionTooLong | None = None
        """The error, if the timer has rolled the transaction back."""

    @property
    def connection(self) -> Any:  # noqa: ANN401 - the driver's own connection, for the task
        """The connection whose writes commit with the run, or not at all."""
        return self._opened().connection

    def settle_and_commit(self, op: Settle, updates: Sequence[RunUpdate] = ()) -> Settled:
        """Write the updates and the end of the attempt, and commit. A lost claim rolls back."""
        answer: Settled = self._commit_with([*updates, op], if_answer=Settled.DONE)
        return answer

    def record_and_commit(self, op: EndStep) -> bool:
        """Record the end of a step, and commit the transaction with it."""
        return bool(self._commit_with([op], if_answer=True))

    def commit(self) -> None:
        """Commit the writes on the connection, without recording anything for a run."""
        self._commit_with([], if_answer=None)

    def record(self, op: EndStep) -> bool:
        """Record the end of a step, as a part of the transaction."""
        return self._opened().record(op)

    def rollback(self) -> DulyError | None:
        """Undo what is not committed. Return why the database had undone it before, if it had."""
        is_lost = False
        with self._ended() as opened:
            if opened is not None:
                is_lost = opened.is_lost
        return self._too_long or (StoreUnavailable(_LOST) if is_lost else None)

    def _opened(self) -> DriverTransaction:
        if self._too_long is not None:
            raise self._too_long
        while self._open is None:
            if not retry_during_outage(self._begin):
                # Other tasks hold all connections, each for at most its limit. This wait does not
                # defer interrupts, so that the timeout of the attempt can end it.
                time.sleep(_LOOK_SECONDS)
        return self._open

    def _begin(self) -> bool:
        """Open the transaction if a connection is free. Return whether it was opened."""
        with defer_interrupts(), ExitStack() as write_lock:
            write_lock.enter_context(self._writing())
            opened = self._driver.begin(self._seconds)
            if opened is None:
                return False
            self._timer = threading.Timer(self._seconds, self._expire)
            self._timer.daemon = True
            self._write_lock, self._open = write_lock.pop_all(), opened
            self._timer.start()
        return True

    def _commit_with(self, ops: Sequence[AnyOp], *, if_answer: object) -> Any:  # noqa: ANN401 - of any op
        """Carry out ops, and commit if the last one has this answer. Roll back otherwise."""
        with defer_interrupts():
            if self._too_long is None:
                self._opened()
            with self._ended() as opened:
                if self._too_long is not None:
                    raise self._too_long
                assert opened is not None  # noqa: S101 - for the type checker
                faultpoints.hit("transaction.before_settle")
                answers = opened.apply(ops)
                answer = answers[-1] if answers else None
                if answer is if_answer:
                    faultpoints.hit("transaction.before_commit")
                    opened.commit(ops[-1] if ops else None)
                    faultpoints.hit("transaction.after_commit")
        return answer

    @contextmanager
    def _ended(self) -> Iterator[DriverTransaction | None]:
        """Let only this thread use the transaction during a block, and close it after the block."""
        with defer_interrupts():
            if self._open is not None:
                # Outside of `_ending`, since the timer may have to end the call in progress.
                self._open.take_back()
            with self._ending:
                opened, self._open = self._open, None
                try:
                    yield opened
                finally:
                    if opened is not None:
                        self._timer.cancel()
                        with self._write_lock:
                            opened.close()

    def _expire(self) -> None:
        """Roll back on the timer's thread."""
        with self._ending:
            opened = self._open
            if opened is None:
                return
            # Set before the task can get an error that the rollback causes.
            self._too_long = TransactionTooLong(
                f"a transaction on {self._driver.database} exceeded its limit of "
                f"{self._seconds:g} s and was rolled back; do slow work before the transaction, or "
                "set transaction_limit="
            )
            with self._write_lock:
                opened.expire(self._too_long)


def carry_out_all(transaction: Transaction, ops: Sequence[AnyOp]) -> list[Any]:
    """Carry out the ops that end a task's transaction, and return their answers."""
    return [
        transaction.settle([op])[0] if isinstance(op, Settle) else carry_out(transaction, op)
        for op in ops
    ]
