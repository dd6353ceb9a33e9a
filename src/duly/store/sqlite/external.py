"""A store on an SQLite connection that the caller opened, such as one to a database in memory.

A transaction that has read cannot write after another connection has committed. So in an open
transaction the store takes the write lock before it reads.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from duly.clock import Clock, SystemClock
from duly.core.record import WorkerRecord
from duly.store.external import ExternalConnectionProvider, SingleProcessStore
from duly.store.group_commit import Answers
from duly.store.ops.op import A, Op, in_order
from duly.store.ops.runs import Accepted, Enqueue
from duly.store.protocol import Dialogue
from duly.store.schema import Schema
from duly.store.sqlite.connection import driver_errors
from duly.store.sqlite.enqueue import SQL
from duly.store.sqlite.store import SqliteStore
from duly.store.transaction import Row


class ExternalSqliteStore(SingleProcessStore, SqliteStore):
    """Writes in the transaction that is open on the connection."""

    def __init__(
        self, lender: ExternalConnectionProvider, path: Path | None, *, clock: Clock | None = None
    ) -> None:
        self._lender = lender
        self._clock = clock or SystemClock()
        self._is_in_memory = path is None
        self.path = path or Path(":memory:")
        self.url = f"sqlite:///{self.path}"
        self.shown_url = str(self.path)
        self.notices: list[str] = []
        self._last_claimed_at = 0

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, and return their answers in the same order."""
        answers: Answers = [None] * len(ops)
        with driver_errors(self.path), self._lender.writing() as connection:
            cursor = connection.cursor()
            cursor.execute(SQL["begin_to_write"])
            transaction = self.transaction_of(cursor)
            for group in in_order(ops):
                self._write_group(transaction, group, answers)
        return answers

    def read_schema(self) -> Schema:
        """Return the version of the tables; 0 if there are none."""
        with self._lender.reading() as connection, suppress(sqlite3.OperationalError):
            # If that table is missing, or the caller has read before, the schema is still readable.
            if connection.in_transaction:
                connection.execute(SQL["begin_to_write"])
        return super().read_schema()

    def enqueue_on_connection(self, op: Enqueue, *, hint: bool) -> Dialogue[Accepted]:
        """Accept a run on a connection. A database in memory has only this store's connection."""
        if not self._is_in_memory:
            return (yield from super().enqueue_on_connection(op, hint=hint))
        return self.do(op)

    def _read(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        with driver_errors(self.path), self._lender.reading() as connection:
            found: list[Row] = connection.execute(sql, self._with_clocks(parameters)).fetchall()
            return found

    def _last_seen(self, worker: WorkerRecord) -> int:
        """Return the time in the worker's row. A database in memory has no heartbeat files."""
        return worker.seen_at
