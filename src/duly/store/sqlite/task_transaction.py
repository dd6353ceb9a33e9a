"""The driver of task transactions on SQLite's own connections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duly.clock import Clock
from duly.errors import TransactionTooLong
from duly.limits import SQLITE_TRANSACTION_SECONDS
from duly.store.ops.op import AnyOp
from duly.store.ops.steps import EndStep
from duly.store.sqlite.busy_timeout import LOOK_SECONDS, commit, retry_while_busy
from duly.store.sqlite.connection import connect, driver_errors
from duly.store.sqlite.task_connection import SqliteTaskConnection
from duly.store.sqlite.transaction import SqliteTransaction
from duly.store.task_transaction import carry_out_all


class SqliteTaskTransactionDriver:
    """Opens a connection for each transaction. The caller holds the write lock of the file."""

    limit_seconds = SQLITE_TRANSACTION_SECONDS

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.database = str(path)

    def begin(self, _seconds: float) -> "SqliteTaskTransaction":
        """Open a transaction that writes."""
        # No statement is cached, so that the guard checks each one.
        connection = connect(
            self._path, seconds=LOOK_SECONDS, cached_statements=0, factory=SqliteTaskConnection
        )
        try:
            with driver_errors(self._path):
                retry_while_busy(self._path, connection.begin)
        except BaseException:
            connection.end()
            raise
        return SqliteTaskTransaction(connection, self._path, self._clock)


class SqliteTaskTransaction:
    """A transaction on a connection of its own."""

    is_lost = False
    """A connection to a file cannot be lost."""

    def __init__(self, connection: SqliteTaskConnection, path: Path, clock: Clock) -> None:
        self.connection = connection
        self._path = path
        self._clock = clock
        self._is_closed = False

    def record(self, op: EndStep) -> bool:
        """Carry out an op while the task continues to use the connection."""
        return bool(self.apply([op])[0])

    def take_back(self) -> None:
        """Take the connection from the task, after the call that is in progress."""
        self.connection.take_back()

    def expire(self, why: TransactionTooLong) -> None:
        """Roll back, and interrupt the call of the task that is in progress."""
        self.connection.take_away(why)
        try:
            self.close()
        finally:
            self.connection.using.release()

    def apply(self, ops: Sequence[AnyOp]) -> list[Any]:
        """Carry out ops in the transaction."""
        with driver_errors(self._path):
            cursor = self.connection.cursor()
            self.connection.check_open()
            return carry_out_all(SqliteTransaction(cursor, self._clock), ops)

    def commit(self, _op: AnyOp | None) -> None:
        """Commit. The reply cannot be lost."""
        with driver_errors(self._path):
            commit(self.connection)

    def close(self) -> None:
        """Roll back what is not committed, and close the connection."""
        if not self._is_closed:
            self._is_closed = True
            self.connection.end()
