"""A transaction of the user's in the store's file that ends with its run's completion."""

import sqlite3
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from duly import faultpoints
from duly.errors import TransactionTooLong
from duly.limits import SQLITE_SECTION_SECONDS
from duly.store.ops import Settle, Settled
from duly.store.sqlite.connection import connect, driver_errors
from duly.store.sqlite.settle import settle
from duly.store.sqlite.steps import end
from duly.store.step_ops import EndStep

if TYPE_CHECKING:
    from duly.store.sqlite.store import SqliteStore

T = TypeVar("T")


class SqliteSection:
    """Opens at the first use of its connection and keeps the write lock until its end.

    Everybody else's writes wait for it, so it is rolled back when it takes too long, whatever its
    body is doing just then.
    """

    def __init__(self, store: "SqliteStore", seconds: float | None) -> None:
        self._store = store
        self._seconds = SQLITE_SECTION_SECONDS if seconds is None else seconds
        self._connection: sqlite3.Connection | None = None
        self._timer: threading.Timer | None = None
        self._ending = threading.Lock()
        """Held by whoever ends it: the body's thread or the timer's."""
        self._ender: int | None = None
        self.too_long: TransactionTooLong | None = None
        """Why it was rolled back, if it was for that."""

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection whose writes commit with the run, or not at all."""
        if self.too_long is not None:
            raise self.too_long
        if self._connection is None:
            self._store.lock.acquire()
            try:
                # No statement is kept: every one is to meet the guard.
                connection = connect(self._store.path, cached_statements=0)
                with driver_errors(self._store.path):
                    connection.execute("BEGIN IMMEDIATE")
                    connection.set_authorizer(self._guard)
            except BaseException:
                self._store.lock.release()
                raise
            self._connection = connection
            self._timer = threading.Timer(self._seconds, self._expire)
            self._timer.daemon = True
            self._timer.start()
        return self._connection

    def settle_and_commit(self, op: Settle) -> Settled:
        """Write the completion, fenced, and commit all; a lost claim rolls all back."""
        return self._commit_with(lambda cursor, now: settle(cursor, [op], now)[0], _is_settled)

    def record_and_commit(self, op: EndStep) -> bool:
        """Write down what a step came to, and end the transaction with it."""
        return self._commit_with(lambda cursor, now: end(cursor, op, now), bool)

    def record(self, op: EndStep) -> bool:
        """Write down what a step came to, as a part of the transaction."""
        with driver_errors(self._store.path):
            return end(self.connection.cursor(), op, self._store.now())

    def _commit_with(
        self, write: Callable[[sqlite3.Cursor, int], T], is_done: Callable[[T], bool]
    ) -> T:
        connection = self.connection
        with self._ending:
            if self.too_long is not None:
                raise self.too_long
            self._ender = threading.get_ident()
            try:
                with driver_errors(self._store.path):
                    faultpoints.hit("transaction.before_settle")
                    answer = write(connection.cursor(), self._store.now())
                    if is_done(answer):
                        faultpoints.hit("transaction.before_commit")
                        connection.execute("COMMIT")
                        faultpoints.hit("transaction.after_commit")
            finally:
                self._close()
        return answer

    def rollback(self) -> None:
        """Undo what is not committed and let other writers go on."""
        with self._ending:
            self._ender = threading.get_ident()
            self._close()

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            connection.close()
        finally:
            if self.too_long is None:
                self._store.lock.release()

    def _expire(self) -> None:
        """Roll back in the midst of the body, from the timer's thread."""
        with self._ending:
            connection = self._connection
            if connection is None or self.too_long is not None:
                return
            self._ender = threading.get_ident()
            self.too_long = TransactionTooLong(
                f"a transaction on {self._store.path} was open for longer than {self._seconds:g} s "
                f"while every other write waited for it, and was rolled back; do what takes time "
                f"before it, or set transaction_limit="
            )
            try:
                # From now on the guard refuses every statement that the body begins; one that is
                # under way is broken off, and one that goes on row by row finds that it may not
                # write. Nothing of the body can be committed behind the rollback.
                connection.interrupt()
                connection.execute("PRAGMA query_only = 1")
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
            finally:
                self._store.lock.release()

    def _guard(self, action: int, *_what: str | None) -> int:
        """Refuse the body a COMMIT or ROLLBACK of its own: its writes end with its run."""
        if self._ender is not None:
            is_ours = self._ender == threading.get_ident()
            return sqlite3.SQLITE_OK if is_ours else sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


def _is_settled(answer: Settled) -> bool:
    return answer is Settled.DONE
