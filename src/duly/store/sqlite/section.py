"""A transaction of the user's in the store's file that ends with its run's completion."""

import sqlite3
from typing import TYPE_CHECKING

from duly import faultpoints
from duly.store.ops import Settle, Settled
from duly.store.sqlite.connection import connect, driver_errors
from duly.store.sqlite.settle import settle

if TYPE_CHECKING:
    from duly.store.sqlite.store import SqliteStore


class SqliteSection:
    """Opens at the first use of its connection and keeps the write lock until its end."""

    def __init__(self, store: "SqliteStore") -> None:
        self._store = store
        self._connection: sqlite3.Connection | None = None

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection whose writes commit with the run, or not at all."""
        if self._connection is None:
            self._store.lock.acquire()
            try:
                connection = connect(self._store.path)
                with driver_errors(self._store.path):
                    connection.execute("BEGIN IMMEDIATE")
                    connection.set_authorizer(_guard)
            except BaseException:
                self._store.lock.release()
                raise
            self._connection = connection
        return self._connection

    def settle_and_commit(self, op: Settle) -> Settled:
        """Write the completion, fenced, and commit all; a lost claim rolls all back."""
        connection = self.connection
        try:
            with driver_errors(self._store.path):
                faultpoints.hit("transaction.before_settle")
                connection.set_authorizer(None)
                (answer,) = settle(connection.cursor(), [op], self._store.now())
                if answer is Settled.DONE:
                    faultpoints.hit("transaction.before_commit")
                    connection.execute("COMMIT")
                    faultpoints.hit("transaction.after_commit")
        finally:
            self.rollback()
        return answer

    def rollback(self) -> None:
        """Undo what is not committed and let other writers go on."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.set_authorizer(None)
            if connection.in_transaction:
                connection.rollback()
            connection.close()
        finally:
            self._store.lock.release()


def _guard(action: int, *_what: str | None) -> int:
    """Refuse the body a COMMIT or ROLLBACK of its own: its writes end with its run."""
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK
