"""A connection for a task body, which another thread may take away from the body at any time.

Every call holds one lock. A thread that takes the connection away first marks it as taken, then
interrupts the current call. After it has acquired the lock, it has the connection alone. Without
the lock, two threads could be inside the driver, one with SQLite's own lock and the other with the
interpreter's, and deadlock.
"""

import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

from duly.errors import BadOption, TransactionEnded, TransactionTooLong
from duly.interrupts import last_interrupt
from duly.store.task_connection import ENDS_WITH_ITS_RUN, IS_OVER

ROLLED_BACK_BY_A_STATEMENT = (
    "a statement rolled back this run's transaction, as INSERT OR ROLLBACK does and a full disk "
    "can do, so nothing was committed; raise the error of that statement again, or use statements "
    "that undo only their own changes"
)

_PATIENCE = 0.002
_TRIES = 1_000
_KNOWN_CURSORS = 100


class SqliteTaskCursor(sqlite3.Cursor):
    """A cursor of a task connection."""

    connection: "SqliteTaskConnection"

    def execute(self, sql: str, parameters: Any = (), /) -> "SqliteTaskCursor":  # noqa: ANN401
        """Execute a statement."""
        with self.connection.using:
            self.connection.check()
            try:
                super().execute(sql, parameters)
            except sqlite3.DatabaseError as error:
                raise self.connection.refusal_of(error) from error.__cause__
            return self

    def executemany(self, sql: str, rows: Iterable[Any], /) -> "SqliteTaskCursor":
        """Execute a statement for many rows."""
        with self.connection.using:
            self.connection.check()
            try:
                super().executemany(sql, self._while_lent(rows))
            except sqlite3.DatabaseError as error:
                raise self.connection.refusal_of(error) from error.__cause__
            return self

    def executescript(self, _script: str, /) -> "SqliteTaskCursor":
        """Refuse, since the driver commits before a script."""
        raise BadOption(ENDS_WITH_ITS_RUN)

    def fetchone(self) -> Any:  # noqa: ANN401 - a row
        """Return the next row."""
        with self.connection.using:
            self.connection.check()
            return super().fetchone()

    def fetchmany(self, size: int | None = None) -> list[Any]:
        """Return some rows."""
        with self.connection.using:
            self.connection.check()
            return super().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[Any]:
        """Return all rows."""
        with self.connection.using:
            self.connection.check()
            return super().fetchall()

    def __next__(self) -> Any:  # noqa: ANN401 - a row
        with self.connection.using:
            self.connection.check()
            return super().__next__()

    def _while_lent(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            self.connection.check()
            yield row


class SqliteTaskConnection(sqlite3.Connection):
    """A connection whose transaction ends with its run, or when it takes too long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the driver's own
        super().__init__(*args, **kwargs)
        self.using = threading.RLock()
        """The lock that every call holds."""
        self.taken_away: TransactionTooLong | None = None
        """Why the body can no longer use the connection."""
        self._ender: int | None = threading.get_ident()
        """The engine's thread that uses the connection, before and after the body does."""
        self._has_ended = False
        self._is_closed = False
        self._refused = False
        """Whether the guard has just refused a statement."""
        self._cursors: list[ref[SqliteTaskCursor]] = []
        """References without callbacks: an interrupt inside a callback would be lost."""
        self.set_authorizer(self._guard)

    def check(self) -> None:
        """Raise if the connection was taken away, or if its transaction has ended."""
        if self._is_closed:
            raise self.taken_away or TransactionEnded(IS_OVER)
        if self._ender != threading.get_ident():
            self.check_end()

    def check_time(self) -> None:
        """Raise if the transaction took too long, even on the thread that has reserved it."""
        if self.taken_away is not None:
            raise self.taken_away

    def check_end(self) -> None:
        """Raise if the transaction must not be committed."""
        self.check_time()
        if not self.in_transaction:
            # Every further statement would be committed by itself.
            raise TransactionEnded(ROLLED_BACK_BY_A_STATEMENT)

    def refusal_of(self, error: sqlite3.Error) -> BaseException:
        """Return the exception for an error of the driver. It is our own if the guard refused."""
        refused, self._refused = self._refused, False
        if refused:
            return BadOption(ENDS_WITH_ITS_RUN)
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_AUTH:
            # A timeout occurred inside the guard. The driver treats any exception as a refusal.
            thrown = last_interrupt()
            return error if thrown is None else thrown()
        return error

    def cursor(self, factory: Any = SqliteTaskCursor) -> Any:  # noqa: ANN401 - as the driver has it
        """Return a cursor."""
        self.check()
        cursor = super().cursor(factory)
        if isinstance(cursor, SqliteTaskCursor):
            if len(self._cursors) > _KNOWN_CURSORS:
                self._cursors = [known for known in self._cursors if known() is not None]
            self._cursors.append(ref(cursor))
        return cursor

    # The driver's own methods would create a plain cursor, without our checks.

    def execute(self, sql: str, parameters: Any = (), /) -> SqliteTaskCursor:  # noqa: ANN401
        """Execute a statement."""
        cursor: SqliteTaskCursor = self.cursor()
        return cursor.execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> SqliteTaskCursor:
        """Execute a statement for many rows."""
        cursor: SqliteTaskCursor = self.cursor()
        return cursor.executemany(sql, rows)

    def executescript(self, _script: str, /) -> SqliteTaskCursor:
        """Refuse, since the driver commits before a script."""
        raise BadOption(ENDS_WITH_ITS_RUN)

    def commit(self) -> None:
        """Refuse. The transaction ends with its run."""
        raise BadOption(ENDS_WITH_ITS_RUN)

    def rollback(self) -> None:
        """Refuse. The transaction ends with its run."""
        raise BadOption(ENDS_WITH_ITS_RUN)

    def close(self) -> None:
        """Refuse. The transaction ends with its run."""
        raise BadOption(ENDS_WITH_ITS_RUN)

    # -- for the owner, which lends the connection to the body --

    def begin(self) -> None:
        """Open the transaction before the connection is lent."""
        self._ender = threading.get_ident()
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            self._ender = None

    def take_back(self) -> None:
        """Reserve the connection for this thread, after the current call of the body has ended."""
        self.using.acquire()
        self._ender = threading.get_ident()

    def take_away(self, why: TransactionTooLong) -> None:
        """Reserve the connection for this thread, and interrupt a call of the body."""
        self.taken_away = why
        while not self.using.acquire(timeout=_PATIENCE):
            if self._ender is None:
                self.interrupt()
        self._ender = threading.get_ident()

    def leave(self) -> None:
        """Return the connection to the body."""
        self.using.release()

    def end(self) -> None:
        """Roll back and close the connection. Only for the thread that has reserved it."""
        if self._has_ended:
            return
        self._has_ended = True
        # While a statement is half read, an interrupt that was meant for the body also stops our
        # own statements, and closing the connection would not release the statement's locks.
        for known in self._cursors:
            cursor = known()
            if cursor is not None:
                cursor.close()
        for _ in range(_TRIES):
            if not self.in_transaction:
                break
            with suppress(sqlite3.OperationalError):
                self.execute("ROLLBACK")
        self._is_closed = True
        super().close()

    def _guard(self, action: int, *_what: str | None) -> int:
        """Refuse a COMMIT or ROLLBACK by the body."""
        if action != sqlite3.SQLITE_TRANSACTION or self._ender == threading.get_ident():
            return sqlite3.SQLITE_OK
        self._refused = True
        return sqlite3.SQLITE_DENY
