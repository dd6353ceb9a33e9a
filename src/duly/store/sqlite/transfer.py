"""Reads all data of a file as of one moment, for another database."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from duly.errors import StoreRefused
from duly.store.sqlite.connection import driver_errors
from duly.store.sqlite.file_identity import close_for_good
from duly.store.sqlite.store import SqliteStore
from duly.store.statements import load
from duly.store.transfer import TransferTable

SQL = load("sqlite", "move")

TABLES = (
    "duly_queues",
    "duly_runs",
    "duly_waiting",
    "duly_history",
    "duly_attempts",
    "duly_keys",
    "duly_tags",
    "duly_logs",
    "duly_acts",
    "duly_bulk_acts",
    "duly_schedules",
    "duly_firings",
    "duly_steps",
    "duly_events",
    "duly_handed",
    "duly_letters",
    "duly_tallies",
    "duly_guarded",
    "duly_locks",
    "duly_accounts",
    "duly_retentions",
)
"""All tables except the workers, since no worker may be live."""


class SqliteTransferSource:
    """A file without other writers."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def tables(self) -> Iterator[TransferTable]:
        """Read the tables one after another."""
        for name in TABLES:
            cursor = self._connection.execute(SQL[name])
            columns = tuple(column[0] for column in cursor.description)
            yield TransferTable(name, columns, cursor)

    def row_count(self) -> int:
        """Return the approximate number of rows."""
        found: int = self._connection.execute(SQL["row_count"]).fetchone()[0]
        return found

    def close_for_good(self, target: str) -> None:
        """Refuse every insert and update from now on. The existing data can still be read."""
        close_for_good(self._connection, (*TABLES, "duly_workers"), target)

    def latest_fence(self) -> int:
        """Return the latest fence that a guard has issued for a key."""
        found: int = self._connection.execute(SQL["latest_fence"]).fetchone()[0]
        return found


@contextmanager
def reading(store: SqliteStore) -> Iterator[SqliteTransferSource]:
    """Keep all writers of the file out during a block, and read the file.

    The effect of `close_for_good` is committed at the end of the block.
    """
    with store.writing_alone() as connection, driver_errors(store.path):
        # This check is made under the lock, so that no worker can register after it.
        if any(worker.state == "live" for worker in store.list_workers()):
            raise StoreRefused(f"a worker is live on {store.shown_url}; stop all workers first")
        if connection.execute("SELECT 1 FROM duly_runs WHERE state = 'running'").fetchone():
            raise StoreRefused(
                f"{store.shown_url} has running runs of dead workers; let a worker recover them "
                "first: duly worker module:app --drain"
            )
        yield SqliteTransferSource(connection)
