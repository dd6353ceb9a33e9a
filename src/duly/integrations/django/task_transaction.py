"""The driver of task transactions on Django's connections.

The task's writes through Django's models, its enqueued runs and its completion commit together,
fenced by the claim, or not at all.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from duly import current
from duly.errors import (
    BadOption,
    DulyError,
    StoreUnavailable,
    TransactionEnded,
    TransactionTooLong,
)
from duly.integrations.django.databases import external_store, transaction_limit_seconds
from duly.integrations.django.task_body import ON_EXTERNAL_CONNECTION, close_stale_connections
from duly.store.ops.op import AnyOp
from duly.store.ops.steps import EndStep
from duly.store.postgres.transaction_scan import find_transaction_end
from duly.store.task_connection import ENDS_WITH_ITS_RUN

T = TypeVar("T")
CallbackErrorReporter = Callable[[BaseException], None]

_BROKEN = (
    "nothing of this run was committed: a statement in its transaction failed and the task caught "
    "the error, or set_rollback was called; raise the error again, or run the statement in "
    "transaction.atomic()"
)
_ENDED = (
    "a statement of the task committed or rolled back its transaction, which must end with its "
    "run, so the run has not succeeded and nothing after that statement was committed; use "
    "transaction.atomic() to undo some of the writes, and raise an exception to undo all of them"
)


class DjangoTaskTransactionDriver:
    """Opens Django transactions in the threads of tasks, so that models write in them."""

    def __init__(self, database: str, report_callback_error: CallbackErrorReporter) -> None:
        self.alias = database
        self.database = f"the database {database!r}"
        self.report_callback_error = report_callback_error

    @property
    def limit_seconds(self) -> float:
        """How long a transaction may be open. On SQLite, it blocks all other writers."""
        return transaction_limit_seconds(self.alias)

    def begin(self, _seconds: float) -> "DjangoTaskTransaction":
        """Open a transaction on Django's connection in this thread."""
        try:
            return DjangoTaskTransaction(self)
        except (InterfaceError, OperationalError) as error:
            if connections[self.alias].vendor != "postgresql":
                raise  # Another transaction has locked the file. That is not an outage.
            raise StoreUnavailable(f"{self.database} cannot be reached: {error}") from error


class DjangoTaskTransaction:
    """An atomic block of Django, which the task's own thread enters and leaves."""

    def __init__(self, driver: DjangoTaskTransactionDriver) -> None:
        self._driver = driver
        connection = connections[driver.alias]
        self._is_sqlite = connection.vendor == "sqlite"
        self._atomic: Any = transaction.atomic(using=driver.alias, durable=True)
        self._atomic.__enter__()
        self._raw = connection.connection
        self._interrupt: Callable[[], object] = (
            self._raw.interrupt if self._is_sqlite else self._raw.cancel
        )
        self._using = threading.RLock()
        """Held while a statement runs, and by the timer when it rolls back."""
        self._is_committed = False
        self._over: DulyError | None = None
        """The reason why the task can no longer use the transaction."""
        connection.execute_wrappers.append(self._execute)
        # Runs before the task's own callbacks, so that an error in one of them is recognized.
        transaction.on_commit(self._note_commit, using=driver.alias)

    @property
    def connection(self) -> Any:  # noqa: ANN401 - Django's own
        """Django's connection in this thread."""
        return connections[self._driver.alias]

    @property
    def is_lost(self) -> bool:
        """True if the connection was lost while the transaction was open."""
        return bool(getattr(self._raw, "closed", False))

    def record(self, op: EndStep) -> bool:
        """Carry out an op while the task continues to use the connection."""
        return bool(self.apply([op])[0])

    def take_back(self) -> None:
        """Do nothing. Django lets only the task's own thread use the connection."""

    def expire(self, why: TransactionTooLong) -> None:
        """Roll back from the timer's thread, and interrupt the statement in progress."""
        self._over = why
        # The transaction ends in any case, and the code that uses it gets the reason.
        with suppress(Exception):
            self._interrupt()
        with self._using, suppress(Exception):
            self._raw.rollback()

    def apply(self, ops: Sequence[AnyOp]) -> list[Any]:
        """Carry out ops in the transaction, unless the task has broken it."""
        if self.connection.needs_rollback:
            # A statement would be executed all the same, and silently rolled back later.
            raise TransactionEnded(_BROKEN)
        with self._outages():
            return self._guarded(external_store(self._driver.alias).apply, ops)

    def commit(self, _op: AnyOp | None) -> None:
        """Commit. If the reply is lost, the fence refuses any later end of the run."""
        with self._outages():
            try:
                self._leave_block()
            except Exception as error:
                if not self._is_committed:
                    raise
                # A callback for after the commit failed.
                self._driver.report_callback_error(error)

    def close(self) -> None:
        """Roll back if the block is still open."""
        if self._atomic is not None:
            with suppress(DatabaseError):
                self.connection.set_rollback(True)
                self._leave_block()

    def _leave_block(self) -> None:
        atomic, self._atomic = self._atomic, None
        connection = self.connection
        connection.execute_wrappers.remove(self._execute)
        try:
            atomic.__exit__(None, None, None)
        except DatabaseError:
            connection.close()
            raise
        finally:
            close_stale_connections()

    def _execute(self, execute: Callable[..., T], sql: Any, *arguments: Any) -> T:  # noqa: ANN401 - Django's
        if not self._is_sqlite and (ending := find_transaction_end(str(sql).encode())):
            raise BadOption(f"{ending}: {ENDS_WITH_ITS_RUN}")
        return self._guarded(execute, sql, *arguments)

    def _guarded(self, execute: Callable[..., T], *arguments: Any) -> T:  # noqa: ANN401 - Django's
        with self._using:
            if self._over is not None:
                raise self._over
            was_open = self._is_open()
            try:
                return execute(*arguments)
            finally:
                if was_open and not self._is_open() and self._over is None:
                    self._over = TransactionEnded(_ENDED)

    def _is_open(self) -> bool:
        """Return whether a transaction is open. On PostgreSQL the first statement opens it."""
        raw = self._raw
        return bool(raw.in_transaction if self._is_sqlite else raw.info.transaction_status)

    def _note_commit(self) -> None:
        self._is_committed = True

    @contextmanager
    def _outages(self) -> Iterator[None]:
        try:
            yield
        except (InterfaceError, OperationalError) as error:
            raise StoreUnavailable(
                f"{self._driver.database} was lost before the end of a run was committed: {error}"
            ) from error


@contextmanager
def with_completion(database: str) -> Iterator[None]:
    """Commit what a task writes in the block together with its completion."""
    if ON_EXTERNAL_CONNECTION.get():
        # The caller of `drain` commits everything or nothing.
        with transaction.atomic(using=database):
            yield
    else:
        _ = current().connection  # Opens the transaction. The worker ends it.
        yield
