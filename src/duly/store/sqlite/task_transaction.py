"""A user's transaction in the store's file that ends together with its run."""

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from duly import faultpoints
from duly.errors import StoreError, TransactionTooLong
from duly.interrupts import defer_interrupts
from duly.limits import SQLITE_TRANSACTION_SECONDS
from duly.store.ops.runs import Settle, Settled
from duly.store.ops.steps import EndStep
from duly.store.ops.updates import RunUpdate
from duly.store.sqlite.busy_timeout import LOOK_SECONDS, commit, retry_while_busy
from duly.store.sqlite.connection import connect, driver_errors
from duly.store.sqlite.task_connection import SqliteTaskConnection
from duly.store.sqlite.transaction import SqliteTransaction
from duly.store.verbs.verb import carry_out

if TYPE_CHECKING:
    from duly.store.sqlite.store import SqliteStore

T = TypeVar("T")


class SqliteTaskTransaction:
    """A transaction that begins at the first use of its connection and keeps the write lock.

    All other writes wait for it. So it is rolled back when it takes too long, even while the task
    body is using it.
    """

    def __init__(self, store: "SqliteStore", seconds: float | None) -> None:
        self._store = store
        self._seconds = SQLITE_TRANSACTION_SECONDS if seconds is None else seconds
        self._connection: SqliteTaskConnection | None = None
        self._timer: threading.Timer | None = None
        self._is_locked = False
        self.too_long: TransactionTooLong | None = None
        """The reason, if the transaction took too long and was rolled back."""

    @property
    def connection(self) -> SqliteTaskConnection:
        """The connection. Its writes are committed together with the run, or not at all."""
        if self.too_long is not None:
            raise self.too_long
        if self._connection is None:
            with defer_interrupts():
                self._open()
        assert self._connection is not None  # noqa: S101 - for the type checker
        return self._connection

    @property
    def is_lost(self) -> bool:
        """False: a connection to a file cannot be lost."""
        return False

    def settle_and_commit(self, op: Settle, updates: Sequence[RunUpdate] = ()) -> Settled:
        """Record the end of the attempt and commit everything. Roll back if the claim was lost."""

        def write(transaction: SqliteTransaction) -> Settled:
            for update in updates:
                carry_out(transaction, update)
            return transaction.settle([op])[0]

        return self._commit_with(write, _is_settled)

    def record_and_commit(self, op: EndStep) -> bool:
        """Record the end of a step, and commit the transaction with it."""
        return self._commit_with(lambda transaction: carry_out(transaction, op), bool)

    def commit(self) -> None:
        """Commit the writes on the connection without the end of a run."""
        self._commit_with(lambda _transaction: True, bool)

    def record(self, op: EndStep) -> bool:
        """Record the end of a step, as a part of the transaction."""
        with driver_errors(self._store.path):
            return carry_out(self._store.transaction_of(self.connection.cursor()), op)

    def rollback(self) -> None:
        """Roll back the transaction and release the lock for other writers."""
        with defer_interrupts():
            connection = self._connection
            if connection is not None:
                connection.take_back()
                self._close(connection)

    def _open(self) -> None:
        self._store.lock.acquire()
        try:
            # No statement is cached, so that the guard checks each one.
            connection = connect(
                self._store.path,
                seconds=LOOK_SECONDS,
                cached_statements=0,
                factory=SqliteTaskConnection,
            )
            try:
                with driver_errors(self._store.path):
                    retry_while_busy(self._store.path, connection.begin)
            except BaseException:
                connection.end()
                raise
        except BaseException:
            self._store.lock.release()
            raise
        self._connection = connection
        self._is_locked = True
        self._timer = threading.Timer(self._seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def _commit_with(
        self, write: Callable[[SqliteTransaction], T], is_done: Callable[[T], bool]
    ) -> T:
        with defer_interrupts():
            connection = self.connection
            connection.take_back()
            try:
                connection.check_end()
                with driver_errors(self._store.path):
                    faultpoints.hit("transaction.before_settle")
                    answer = write(self._store.transaction_of(connection.cursor()))
                    if is_done(answer):
                        faultpoints.hit("transaction.before_commit")
                        commit(connection)
                        faultpoints.hit("transaction.after_commit")
            except StoreError:
                # The timer's interrupt may have failed a statement, though it came too late to take
                # the connection away.
                connection.check_time()
                raise
            finally:
                self._close(connection)
        return answer

    def _close(self, connection: SqliteTaskConnection) -> None:
        """End the transaction finally. The caller has reserved the connection."""
        self._connection = None
        try:
            if self._timer is not None:
                self._timer.cancel()
            connection.end()
        finally:
            connection.leave()
            if self._is_locked:
                self._is_locked = False
                self._store.lock.release()

    def _expire(self) -> None:
        """Roll back on the timer's thread, while the body runs."""
        connection = self._connection
        if connection is None:
            return
        why = TransactionTooLong(
            f"a transaction on {self._store.path}, during which every other write had to wait, "
            f"exceeded its limit of {self._seconds:g} s and was rolled back; do slow work before "
            "the transaction, or set transaction_limit="
        )
        # Set before the body can get an error that this rollback causes.
        self.too_long = why
        connection.take_away(why)
        try:
            if self._connection is None:
                return  # The body was faster and has already ended the transaction.
            try:
                connection.end()
            finally:
                self._is_locked = False
                self._store.lock.release()
        finally:
            connection.leave()


def _is_settled(answer: Settled) -> bool:
    return answer is Settled.DONE
