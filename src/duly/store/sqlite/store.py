"""The store on an SQLite file: one writer at a time, many processes, both journal modes."""

import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from duly import faultpoints
from duly.clock import Clock, SystemClock
from duly.core.record import WorkerRecord
from duly.errors import OUTAGES, StoreError
from duly.interrupts import defer_interrupts
from duly.store.group_commit import Answers
from duly.store.hints import HintCallback, UnnamedHints, WakeCallback
from duly.store.migrator import record_of
from duly.store.ops.carriers import ClaimCarried
from duly.store.ops.op import (
    FACTS,
    A,
    AnyOp,
    Group,
    Op,
    OpWriter,
    in_order,
    is_repeatable,
    makes_ready,
    spread,
)
from duly.store.ops.runs import Accepted, ClaimRuns, Enqueue, Settle
from duly.store.ops.steps import SendEvent
from duly.store.outage_wait import (
    as_repeatable,
    retry_after_error,
    retry_during_outage,
)
from duly.store.private_files import make_private_folder
from duly.store.protocol import Dialogue, FailingWrites
from duly.store.read_deadline import seconds_left
from duly.store.schema import Schema, SchemaMigration
from duly.store.sqlite import enqueue, migration_statements, steps
from duly.store.sqlite.busy_timeout import commit, retry_while_busy
from duly.store.sqlite.claim import ClaimTime, claim, claim_carried
from duly.store.sqlite.connection import (
    WriteLock,
    check_place,
    create_private,
    driver_errors,
    wal_can_lose_commits,
)
from duly.store.sqlite.file_identity import adopt_file_if_idle
from duly.store.sqlite.heartbeats import FileHeartbeats, FileLivenessHandle, heartbeat_file_path
from duly.store.sqlite.inspector import SqliteInspector
from duly.store.sqlite.process_resources import SqliteResources, opening
from duly.store.sqlite.settle import settle
from duly.store.sqlite.task_transaction import SqliteTaskTransactionDriver
from duly.store.sqlite.transaction import SqliteTransaction
from duly.store.sqlite.wakeup import SqliteHints
from duly.store.task_transaction import TaskTransaction, TaskTransactionDriver
from duly.store.transaction import Row
from duly.store.verbs.verb import carry_out

PACKAGE = "duly.store.sqlite"


class SqliteStore(OpWriter, UnnamedHints, SqliteInspector):
    """One open file."""

    has_one_writer = True

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        task_driver: TaskTransactionDriver | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.url = f"sqlite:///{self.path}"
        self.shown_url = str(self.path)
        self.notices: list[str] = []
        self._clock = clock or SystemClock()
        self._task_driver = task_driver or SqliteTaskTransactionDriver(self.path, self._clock)
        check_place(self.path)
        self._created = create_private(self.path)
        self.folder = self.path.with_name(self.path.name + "-duly.d")
        self._process = SqliteResources(self.path, self._write, prepare=self._prepare)
        self._is_closed = False
        self._pulse = FileHeartbeats(self.folder, self._live_workers)
        self._hints = self._make_hints()
        self._last_claimed_at = 0

    def _make_hints(self) -> SqliteHints:
        wal = self.path.with_name(self.path.name + "-wal")
        return SqliteHints(self.folder, (self.path, wal))

    @property
    def lock(self) -> WriteLock:
        """The lock that every write of this process takes first."""
        return self._here().lock

    def _here(self) -> SqliteResources:
        """Return the open resources of this process. A forked child opens its own."""
        process = self._process
        if process.pid == os.getpid():
            return process
        if self._is_closed:
            raise StoreError("this store is closed; open the store of the application again")
        with opening():
            if self._process.pid != os.getpid():
                self._created = False
                self._process = SqliteResources(self.path, self._write, prepare=self._prepare)
                self._pulse = FileHeartbeats(self.folder, self._live_workers)
                self._hints.close()
                self._hints = self._make_hints()
        return self._process

    # -- writing --

    def apply(self, ops: Sequence[Op[A]]) -> list[A]:
        """Carry out the ops in one transaction, and return their answers in the same order."""
        here = self._here()
        here.lock.refuse_owner()
        try:
            with defer_interrupts():
                return here.committer.apply(ops)
        except OUTAGES as error:
            if not is_repeatable(ops):
                raise
            return retry_after_error(partial(self._apply_again, as_repeatable(ops)), error)

    def _apply_again(self, ops: Sequence[Op[A]]) -> list[A]:
        with defer_interrupts():
            return self._here().committer.apply(ops)

    def can_write_now(self) -> bool:
        """Return whether a write could begin now without waiting for another write."""
        return self._here().lock.is_free()

    def failing_writes(self) -> FailingWrites | None:
        """Return None. Heartbeats and writes cannot reach different databases."""
        return None

    def is_kept_waiting(self, seconds: float) -> bool:  # noqa: ARG002 - a write waits or not
        """Return whether a write waits for the lock file, which a frozen process may hold."""
        return self._here().lock.is_waiting

    def submit(self, ops: Sequence[Op[A]], done: Callable[[list[A] | BaseException], None]) -> None:
        """Carry out the ops on the committer's thread, and call `done` there."""
        here = self._here()
        here.lock.refuse_owner()
        here.committer.submit(ops, done)

    def _write(self, ops: list[AnyOp]) -> Answers:
        if len(ops) == 1 and enqueue.is_plain(ops[0]):
            return [self._enqueue_one(ops[0])]
        groups = in_order(ops)
        answers: Answers = [None] * len(ops)
        here = self._here()
        with driver_errors(self.path), here.lock.mutex:
            try:
                here.lock.lock_file()
                here.file.check()
                cursor = here.writer.cursor()
                retry_while_busy(self.path, partial(cursor.execute, "BEGIN IMMEDIATE"))
                transaction = self.transaction_of(cursor)
                for group in groups:
                    self._write_group(transaction, group, answers)
                commit(here.writer)
            except BaseException:
                if here.writer.in_transaction:
                    here.writer.rollback()
                raise
            finally:
                try:
                    here.lock.unlock_file()
                except BaseException:
                    # An interrupt. Without a second call, other processes would wait for this
                    # one's next write.
                    here.lock.unlock_file()
                    raise
        self._hints.own_commits += 1
        for kind in dict.fromkeys(group.kind for group in groups):
            faultpoints.hit(f"{FACTS[kind].fault}.after_commit")
        if makes_ready(ops, answers):
            self._hints.send()
        return answers

    def _enqueue_one(self, op: AnyOp) -> Accepted:
        """Accept a plain run by one statement, which is its own transaction.

        Most calls are of this kind.
        """
        here = self._here()
        faultpoints.hit("enqueue.before_write")
        with driver_errors(self.path), here.lock.mutex:
            try:
                here.lock.lock_file()
                here.file.check()
                faultpoints.hit("enqueue.before_commit")
                insert = partial(enqueue.enqueue_one, here.writer, op, self.now())
                accepted = retry_while_busy(self.path, insert)
            finally:
                try:
                    here.lock.unlock_file()
                except BaseException:
                    # An interrupt. Without a second call, other processes would wait for this
                    # one's next write.
                    here.lock.unlock_file()
                    raise
        self._hints.own_commits += 1
        faultpoints.hit("enqueue.after_commit")
        self._hints.send()
        return accepted

    def _write_group(self, transaction: SqliteTransaction, group: Group, answers: Answers) -> None:
        kind, places, ops = group
        name = FACTS[kind].fault
        faultpoints.hit(f"{name}.before_write")
        found = self._carry_out(transaction, kind, ops)
        first, last = places[0], places[-1] + 1
        if last - first == len(places):
            answers[first:last] = found
        else:
            spread(found, places, answers)
        faultpoints.hit(f"{name}.before_commit")

    def _carry_out(self, transaction: SqliteTransaction, kind: type, ops: Sequence[Any]) -> Answers:
        """Carry out ops of one kind. A few frequent kinds have code of their own for SQLite."""
        cursor, now = transaction.cursor, transaction.now
        if issubclass(kind, Enqueue):
            return enqueue.enqueue(cursor, ops, now)
        if kind is Settle:
            return settle(cursor, ops, now)
        if kind is ClaimRuns:
            return [claim(cursor, op, self._claim_time(now)) for op in ops]
        if kind is ClaimCarried:
            return [claim_carried(cursor, op, self._claim_time(now)) for op in ops]
        return [carry_out(transaction, op) for op in ops]

    def _claim_time(self, now: int) -> ClaimTime:
        self._last_claimed_at = max(now, self._last_claimed_at + 1)
        return ClaimTime(now, self._last_claimed_at)

    def transaction_of(self, cursor: sqlite3.Cursor) -> SqliteTransaction:
        """Return the transaction that is open on a cursor, as verbs see it."""
        return SqliteTransaction(cursor, self._clock)

    def task_transaction(self, seconds: float | None = None) -> TaskTransaction:
        """Return a transaction for a task. Other writers wait while it is open."""
        return TaskTransaction(self._task_driver, seconds, writing=self.lock.held)

    def send_on_connection(self, op: SendEvent, *, hint: bool) -> Dialogue[bool]:  # noqa: ARG002
        """Send an event on the caller's connection. It is sent if that transaction commits."""
        return steps.send_on_connection(op, self.path, self.now())

    def enqueue_on_connection(
        self,
        op: Enqueue,
        *,
        hint: bool,  # noqa: ARG002 - workers see that the file has changed
    ) -> Dialogue[Accepted]:
        """Accept a run on the caller's connection. It exists if that transaction commits."""
        return enqueue.enqueue_on_connection(op, self.path, self.now(), self.queue_capacity)

    # -- reading --

    def _read(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        return retry_during_outage(partial(self._read_once, sql, parameters))

    def _read_once(self, sql: str, parameters: Mapping[str, Any]) -> list[Row]:
        here, left = self._here(), seconds_left()
        here.file.check()
        with driver_errors(self.path):
            if left is not None:
                return here.read_within(left, sql, self._with_clocks(parameters))
            with here.reading:
                return here.reader.execute(sql, self._with_clocks(parameters)).fetchall()

    def _last_seen(self, worker: WorkerRecord) -> int:
        """Return the time of a worker's last heartbeat, which is in a file."""
        return self._pulse.seen_at(worker.id) or worker.seen_at

    def _live_workers(self) -> list[tuple[str, float]]:
        return [tuple(row) for row in self._query("inspect.live_workers")]

    # -- liveness and hints --

    def heartbeats(self) -> FileHeartbeats:
        """Return the object that records and reads heartbeats."""
        self._here()
        return self._pulse

    def live(self, worker_id: str) -> FileLivenessHandle:
        """Mark this worker as live until this process ends."""
        make_private_folder(self.folder)
        return FileLivenessHandle(heartbeat_file_path(self.folder, worker_id))

    def wake(self, *ops: Enqueue) -> None:  # noqa: ARG002 - hints name no runs here
        """Send a hint to all workers that runs may be ready."""
        self._here()
        self._hints.send()

    def listen(self, woken: WakeCallback, hinted: HintCallback | None = None) -> Callable[[], None]:  # noqa: ARG002
        """Call `woken` at every hint until the returned function is called."""
        self._here()
        make_private_folder(self.folder)
        return self._hints.listen(woken)

    def hears_hints(self) -> bool:
        """Return True. Sockets and the file's own time need no other service."""
        return True

    def disconnect(self) -> None:
        """Do nothing: the connections to a file cost nobody else anything."""

    def close(self) -> None:
        """Write all waiting ops, then close the file."""
        self._is_closed = True
        if self._process.pid == os.getpid():
            self._process.close()
            self._hints.close()

    # -- schema --

    def read_schema(self) -> Schema:
        """Return the version of the tables; 0 if there are none."""
        known = self._read(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'duly_schema'", {}
        )
        if not known:
            return Schema(0, 0)
        return Schema(*self._query("inspect.schema")[0])

    def run_migrations(self, plan: Callable[[Schema], list[SchemaMigration]]) -> list[str]:
        """Run the migrations that `plan` returns, under the write lock, in one transaction."""
        here = self._here()
        with driver_errors(self.path), here.lock.held():
            retry_while_busy(self.path, partial(here.writer.execute, "BEGIN IMMEDIATE"))
            try:
                here.writer.execute(migration_statements.CREATE)
                missing = plan(
                    Schema(*here.writer.execute(migration_statements.VERSION).fetchone())
                )
                for step in missing:
                    for statement in migration_statements.statements(step):
                        here.writer.execute(statement)
                    here.writer.execute(migration_statements.RAN, record_of(step))
                commit(here.writer)
            except BaseException:
                here.writer.rollback()
                raise
        return [step.name for step in missing]

    @contextmanager
    def writing_alone(self) -> Iterator[sqlite3.Connection]:
        """Keep all other writers out during a block. Its writes are committed at its end."""
        here = self._here()
        with here.lock.held():
            retry_while_busy(self.path, partial(here.writer.execute, "BEGIN IMMEDIATE"))
            try:
                yield here.writer
                commit(here.writer)
            except BaseException:
                here.writer.rollback()
                raise

    def _prepare(self, writer: sqlite3.Connection) -> None:
        self._choose_journal(writer)
        adopt_file_if_idle(writer.cursor())

    def _choose_journal(self, writer: sqlite3.Connection) -> None:
        """Use WAL in duly's own file. Keep the journal mode of an application's file."""
        tables = writer.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if self._created or not tables:
            writer.execute("PRAGMA journal_mode = WAL")
        mode = writer.execute("PRAGMA journal_mode").fetchone()[0]
        shared = writer.execute(
            r"SELECT count(*) FROM sqlite_master WHERE tbl_name NOT LIKE 'duly\_%' ESCAPE '\'"
        ).fetchone()[0]
        if mode == "wal" and shared and wal_can_lose_commits():
            self.notices.append(
                f"SQLite {sqlite3.sqlite_version} can lose commits in WAL mode when another "
                f"program writes to {self.path} too; use SQLite 3.51.3 or newer, or PRAGMA "
                "journal_mode = DELETE"
            )
