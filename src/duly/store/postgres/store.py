"""The store on a PostgreSQL database: many concurrent writers on any number of machines."""

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from duly.clock import Clock
from duly.core.served_queues import ServedQueues
from duly.errors import OUTAGES, ReadTooSlow, StoreError, StoreRefused
from duly.interrupts import defer_interrupts
from duly.store.hints import Hint, HintCallback, Peer, WakeCallback, hints_of
from duly.store.ops.op import A, Op, OpWriter, is_repeatable
from duly.store.ops.runs import Accepted, Enqueue
from duly.store.ops.steps import SendEvent
from duly.store.outage_wait import (
    as_repeatable,
    retry_after_error,
    retry_during_outage,
)
from duly.store.postgres import enqueue, migration_runner, steps
from duly.store.postgres.address import Address
from duly.store.postgres.connection import PostgresSession, connect
from duly.store.postgres.failures import is_fatal, translated
from duly.store.postgres.floors import Floors
from duly.store.postgres.heartbeats import (
    PostgresHeartbeats,
    PostgresLivenessHandle,
    is_server_busy,
)
from duly.store.postgres.inspector import PostgresInspector
from duly.store.postgres.pool import ConnectionPool
from duly.store.postgres.task_transaction import PostgresTaskTransactionDriver
from duly.store.postgres.write_paths import WritePaths
from duly.store.protocol import Dialogue, FailingWrites
from duly.store.read_deadline import seconds_left
from duly.store.schema import Schema, SchemaMigration
from duly.store.task_transaction import TaskTransaction, TaskTransactionDriver
from duly.store.transaction import Row

PACKAGE = "duly.store.postgres"
_HAS_SCHEMA = "SELECT pg_catalog.to_regclass('duly_schema') IS NOT NULL"

READERS = 4
MAX_TASK_TRANSACTIONS = 16
"""How many runs of one process can be in a transaction of their own. Others wait for these."""
READER_SECONDS = 5.0
READING = {"jit": "off"}


class PostgresStore(OpWriter, PostgresInspector):
    """One open database."""

    has_one_writer = False

    def can_write_now(self) -> bool:
        """Return True: writes overlap, so a write does not wait for another one."""
        return True

    def __init__(
        self,
        url: str,
        *,
        clock: Clock | None = None,  # noqa: ARG002 - the server has the clock
        task_driver: TaskTransactionDriver | None = None,
    ) -> None:
        self.url = url
        self._task_driver = task_driver
        self._address = Address(url)
        self._database: str | None = None
        self.shown_url = self._address.shown_url
        self.notices: list[str] = []
        self._is_closed = False
        self._process: _PostgresResources | None = None
        self._mutex = threading.Lock()
        _stores.add(self)
        with defer_interrupts():
            self.is_pooled = self._here().writers.read("work", lambda session: session.pooled)
        if self.is_pooled:
            self.notices.append(
                f"{self.shown_url} is a pooler that shares connections: workers get no "
                "notifications across processes and poll every second instead; use the address of "
                "the server itself for lower latency"
            )

    # -- writing --

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops, and return their answers in the same order."""
        try:
            return self._write(ops)
        except OUTAGES as error:
            if not is_repeatable(ops):
                raise
            return retry_after_error(partial(self._write, as_repeatable(ops)), error)

    def _write(self, ops: Sequence[Op[A]]) -> list[A]:
        with defer_interrupts():
            return self._here().writers.apply(ops)

    def submit(self, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]) -> None:
        """Carry out the ops on the committers' own threads, and call `done` there."""
        self._here().writers.submit(ops, done)

    def failing_writes(self) -> FailingWrites | None:
        """Return since when all writes have failed on fresh sessions; None if one was answered."""
        record = self._here().writers.record
        since = record.failing_since
        return None if since is None else FailingWrites(since, record.failed_at, record.reason)

    def is_kept_waiting(self, seconds: float) -> bool:
        """Return whether a statement of this application has run on the server for that long."""
        return is_server_busy(self._address, seconds)

    def task_transaction(self, seconds: float | None = None) -> TaskTransaction:
        """Return a transaction for a task."""
        own = PostgresTaskTransactionDriver(self._address, self._here().transactions)
        return TaskTransaction(self._task_driver or own, seconds)

    def enqueue_on_connection(self, op: Enqueue, *, hint: bool) -> Dialogue[Accepted]:
        """Accept a run on a caller's connection. The run exists if its transaction commits."""
        self._note_external_names(op)
        return enqueue.enqueue_on_connection(
            op, self._database_name(), self.queue_capacity, hint=hint
        )

    def send_on_connection(self, op: SendEvent, *, hint: bool) -> Dialogue[bool]:
        """Send an event on a caller's connection. The event is sent if its transaction commits."""
        self._note_external_names(op)
        return steps.send_on_connection(op, self._database_name(), hint=hint)

    def _note_external_names(self, op: Enqueue | SendEvent) -> None:
        self._here().writers.held_names.note(op)

    def _database_name(self) -> str:
        if self._database is None:
            ((self._database,),) = self._query("enqueue.database")
        return str(self._database)

    # -- reading --

    def _read_for_engine(
        self, connection: str, sql: str, parameters: Mapping[str, Any]
    ) -> list[Row]:
        def read() -> list[Row]:
            with defer_interrupts():
                return self._here().writers.read(
                    connection, lambda session: session.execute(sql, parameters).fetchall()
                )

        return retry_during_outage(read)

    def _read(
        self, sql: str, parameters: Mapping[str, Any], *, prepare: bool | None = None
    ) -> list[Row]:
        return retry_during_outage(partial(self._read_once, sql, parameters, prepare=prepare))

    def _read_once(
        self, sql: str, parameters: Mapping[str, Any], *, prepare: bool | None
    ) -> list[Row]:
        readers = self._here().readers
        retried = False
        while True:
            left = None
            try:
                with defer_interrupts(), readers.connection() as session:
                    # Computed here, since the wait for a reader takes time.
                    left = seconds_left()
                    if left is not None:
                        return session.read_within(left, sql, parameters, prepare=prepare)
                    return session.execute(sql, parameters, prepare=prepare).fetchall()
            except psycopg.Error as error:
                if left is not None and isinstance(error, psycopg.errors.QueryCanceled):
                    raise ReadTooSlow from error
                # Reading twice does no harm, and the server may have restarted.
                if retried or not is_fatal(error):
                    raise translated(error, self._address) from error
                retried = True

    def _note_peek_cost(self, took: int, floors_age: int | None) -> None:
        """Refresh the floors of claims if dead index entries have made peeks slow."""
        self._here().floors.note_cost(took, floors_age)

    def back_up(self, file: Path) -> None:
        """Raise StoreRefused: pg_dump copies the whole database, with the application's tables."""
        raise StoreRefused(
            "back up PostgreSQL with its own tools, together with the rest of the database: "
            f"pg_dump --format=custom --file={file} {self.shown_url}"
        )

    # -- liveness and hints --

    def heartbeats(self) -> PostgresHeartbeats:
        """Return the object that sends and reads heartbeats."""
        return self._here().heartbeats

    def live(self, worker_id: str) -> PostgresLivenessHandle:  # noqa: ARG002 - its row and its beats show it
        """Return the handle that a worker process holds while it is alive."""
        return PostgresLivenessHandle()

    def wake(self, *ops: Enqueue) -> None:
        """Send a hint to workers that these runs are ready; without runs, that any may be."""
        self._here().writers.hints.send(hints_of(ops))

    def pass_on(self, hint: Hint) -> None:
        """Send a hint to the workers of other processes."""
        self._here().writers.hints.send([hint])

    def read_peers(self) -> dict[str, Peer]:
        """Return all live workers by their ids."""
        found = {}
        for worker_ids, queues, tasks in self._query("recover.peers"):
            peer = Peer(ServedQueues.read(queues), frozenset(json.loads(tasks)))
            found.update(dict.fromkeys(worker_ids, peer))
        return found

    def listen(self, woken: WakeCallback, hinted: HintCallback | None = None) -> Callable[[], None]:
        """Call `woken` at every hint until the returned function is called.

        Messages that name runs go to `hinted` instead, if it is given.
        """
        return self._here().writers.hints.listen(woken, hinted)

    def hears_hints(self) -> bool:
        """Return whether every listener here has a connection that listens."""
        return self._here().writers.hints.are_heard()

    def disconnect(self) -> None:
        """Close the connections that are not in use, except the one for heartbeats."""
        process = self._here()
        process.writers.disconnect()
        process.readers.close_idle()

    def close(self) -> None:
        """Write the queued ops, end all threads and close the connections."""
        with self._mutex:
            process, self._process = self._process, None
            self._is_closed = True
        if process is not None:
            process.close()

    # -- schema --

    def read_schema(self) -> Schema:
        """Return the version of the tables; 0 if there are none."""
        if self._read_for_engine("work", _HAS_SCHEMA, {}) != [(True,)]:
            return Schema(0, 0)
        return Schema(*self._query("inspect.schema")[0])

    def run_migrations(self, plan: Callable[[Schema], list[SchemaMigration]]) -> list[str]:
        """Run the steps that `plan` returns, under a lock; in an empty database in one commit."""
        with self._migrating() as session, session.unprepared():
            ran = migration_runner.run(
                session.cursor(), plan, session.transaction, in_one_transaction=session.pooled
            )
        return [step.name for step in ran]

    @contextmanager
    def _migrating(self) -> Iterator[PostgresSession]:
        # An index on a large table may take longer than the role's statement timeout.
        with closing(connect(self._address, {"statement_timeout": "0"})) as session:
            # In this level a transaction has no snapshot between statements for others to wait for.
            session.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            try:
                yield session
            except psycopg.Error as error:
                raise translated(error, self._address) from error

    # -- processes --

    def _here(self) -> "_PostgresResources":
        """Return this process's resources. A forked child opens its own."""
        process = self._process
        if process is not None:
            return process
        with self._mutex:
            if self._is_closed:
                raise StoreError("this store is closed; open the store of the application again")
            if self._process is None:
                self._process = _PostgresResources(self._address)
            return self._process

    def _leave_to_parent(self) -> None:
        """After a fork: keep the inherited resources, and never use or close them."""
        if self._process is not None:
            _inherited.append(self._process)
        self._process = None
        self._mutex = threading.Lock()


class _PostgresResources:
    """Connections and threads, which belong to one process."""

    def __init__(self, address: Address) -> None:
        self.writers = WritePaths(address)
        self.heartbeats = PostgresHeartbeats(address, partial(self.writers.read, "work"))
        self.readers = ConnectionPool(address, READING, size=READERS, seconds=READER_SECONDS)
        self.floors = Floors(self.readers, self.writers.hints)
        # Separate from the readers, because a body may keep a connection for as long as it runs.
        self.transactions = ConnectionPool(address, {}, size=MAX_TASK_TRANSACTIONS)

    def close(self) -> None:
        """Write the queued ops, end all threads and close the connections."""
        self.floors.close()
        self.writers.close()
        self.heartbeats.close()
        self.readers.close()
        self.transactions.close()


_stores: "weakref.WeakSet[PostgresStore]" = weakref.WeakSet()
_inherited: list[_PostgresResources] = []


def _after_fork() -> None:
    for store in list(_stores):
        store._leave_to_parent()  # noqa: SLF001 - of this module


os.register_at_fork(after_in_child=_after_fork)
