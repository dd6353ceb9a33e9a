"""A connection for a task, which another thread may take away from the task at any time.

Every call holds one lock. A thread that takes the connection away first makes further calls fail,
then interrupts the current call. After it has acquired the lock, it has the connection alone.
Without the lock, two threads could be inside the driver, one with SQLite's own lock and the other
with the interpreter's, and deadlock.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any
from weakref import ref

from duly.errors import BadOption, DulyError, TransactionEnded
from duly.interrupts import last_interrupt
from duly.store.task_connection import ENDS_WITH_ITS_RUN, IS_OVER, TaskConnection

ROLLED_BACK_BY_A_STATEMENT = (
    "a statement rolled back this run's transaction, as INSERT OR ROLLBACK does and a full disk "
    "can do, so nothing was committed; raise the error of that statement again, or use statements "
    "that undo only their own changes"
)

_PATIENCE = 0.002
_TRIES = 1_000
_KNOWN_CURSORS = 100


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of the driver's cursor that fails if the task may not use its connection."""

    def call(self: "SqliteTaskCursor", *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the driver's
        with self.connection.using:
            self.connection.check()
            try:
                return method(self, *args, **options)
            except sqlite3.DatabaseError as error:
                raise self.connection.refusal_of(error) from error.__cause__

    call.__doc__ = method.__doc__
    return call


class SqliteTaskCursor(sqlite3.Cursor):
    """A cursor of a task connection."""

    connection: "SqliteTaskConnection"

    execute = _checked(sqlite3.Cursor.execute)
    fetchone = _checked(sqlite3.Cursor.fetchone)
    fetchmany = _checked(sqlite3.Cursor.fetchmany)
    fetchall = _checked(sqlite3.Cursor.fetchall)
    __next__ = _checked(sqlite3.Cursor.__next__)
    _execute_all = _checked(sqlite3.Cursor.executemany)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:  # noqa: ANN401 - this cursor
        """Execute a statement for many rows, until the connection is taken away."""
        return self._execute_all(sql, self._while_usable(rows))

    def executescript(self, _script: str, /) -> "SqliteTaskCursor":
        """Refuse, since the driver commits before a script."""
        raise BadOption(ENDS_WITH_ITS_RUN)

    def _while_usable(self, rows: Iterable[Any]) -> Iterator[Any]:
        for row in rows:
            self.connection.check()
            yield row


class SqliteTaskConnection(TaskConnection, sqlite3.Connection):
    """A connection whose transaction ends with its run, or when it takes too long."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the driver's own
        super().__init__(*args, **kwargs)
        self.using = threading.RLock()
        """The lock that every call holds."""
        self._engine: int | None = threading.get_ident()
        """The engine's thread that uses the connection, before and after the task does."""
        self._refused = False
        """Whether the guard has just refused a statement."""
        self._cursors: list[ref[SqliteTaskCursor]] = []
        """References without callbacks: an interrupt inside a callback would be lost."""
        self.set_authorizer(self._guard)

    def check(self) -> None:
        """Raise if the task can no longer use the connection, or has ended its transaction."""
        if self._engine != threading.get_ident():
            super().check()
            self.check_open()

    def check_open(self) -> None:
        """Raise if the task has ended its transaction."""
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

    def execute(self, sql: str, parameters: Any = (), /) -> Any:  # noqa: ANN401 - a task's cursor
        """Execute a statement."""
        return self.cursor().execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Any], /) -> Any:  # noqa: ANN401 - a task's cursor
        """Execute a statement for many rows."""
        return self.cursor().executemany(sql, rows)

    executescript = TaskConnection._refuse  # noqa: SLF001 - of its base class

    # -- for the driver of task transactions --

    def begin(self) -> None:
        """Open the transaction. The connection is the task's after that."""
        self._engine = threading.get_ident()
        try:
            self.execute("BEGIN IMMEDIATE")
        finally:
            self._engine = None

    def take_back(self) -> None:
        """Make this thread the only user, after the call in progress has ended.

        This does nothing after `take_away`: the thread of the timer is the only user then.
        """
        with self.using:
            if self._over is None:
                self._over = TransactionEnded(IS_OVER)
                self._engine = threading.get_ident()

    def take_away(self, why: DulyError) -> None:
        """Make this thread the only user, and interrupt the call in progress.

        The task's further calls wait until this thread releases `using`.
        """
        self.invalidate(why)
        while not self.using.acquire(timeout=_PATIENCE):
            self.interrupt()
        self._engine = threading.get_ident()

    def end(self) -> None:
        """Roll back and close the connection. Only for its only user."""
        # While a statement is half read, an interrupt that was meant for the task also stops our
        # own statements, and closing the connection would not release the statement's locks.
        for known in self._cursors:
            cursor = known()
            if cursor is not None:
                cursor.close()
        for _ in range(_TRIES):
            if not self.in_transaction:
                break
            # If the task's thread drops a cursor at the same time, the driver may lose the error of
            # an interrupted statement, and raise SystemError instead.
            with suppress(sqlite3.OperationalError, SystemError):
                self.execute("ROLLBACK")
        self._engine = None
        sqlite3.Connection.close(self)

    def _guard(self, action: int, *_what: str | None) -> int:
        """Refuse a COMMIT or ROLLBACK by the task."""
        if action != sqlite3.SQLITE_TRANSACTION or self._engine == threading.get_ident():
            return sqlite3.SQLITE_OK
        self._refused = True
        return sqlite3.SQLITE_DENY
