"""The data that fault injection keeps in the database: a ledger, and all transitions of runs.

Tables are created by a transactional run and read in transactions of the store. This module
therefore needs no driver, and no dialect except the statements in `sql`, one file per database.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from duly.store.statements import Statements
from duly_prove import workload
from duly_prove.fault_statements import fault_statements
from duly_prove.history import AttemptAtEnd, Effect, FiringAtEnd, RunAtEnd, ScheduledRun, Transition

_SETUP_SECONDS = 30.0

_TRIGGERS = (
    "on_accept",
    "on_wait",
    "on_claim",
    "on_requeue",
    "on_end",
    "on_rewrite",
    "on_revive",
)


class Database:
    """The database of the workload's application."""

    def __init__(self) -> None:
        self._app = workload.app
        self._store = self._app.store
        self.kind = "sqlite" if self._store.url.startswith("sqlite:") else "postgresql"
        self._sql: Statements = fault_statements(self.kind)

    def describe(self) -> dict[str, str]:
        """Return the kind and version of the database."""
        with self._section() as connection:
            names = ("version", "journal")
            found = [connection.execute(self._sql[name]).fetchone()[0] for name in names]
        return {"kind": self.kind, **dict(zip(names, map(str, found), strict=True))}

    def create_ledger(self) -> None:
        """Create the table that transactional tasks write to."""
        self._write("ledger")

    def record_transitions(self) -> None:
        """Record every transition from now on, in its own transaction."""
        self._write("event_table", *_TRIGGERS)

    def record_slots(self) -> None:
        """Record from now on which runs take and release slots under a limit."""
        self._write("slot_table", "on_slot_taken", "on_slot_left", "on_slot_gone")

    def slots(self) -> list[tuple[str, str, int]]:
        """Return for each change the run, its slot kind, and whether it took or released a slot."""
        return [(str(run), str(lane), int(change)) for run, lane, change in self._read("slots")]

    def simulate_time(self) -> None:
        """Replace the store's own clock, if it has one, by a settable time."""
        self._write("simulate_time")

    def set_time(self, now: int) -> None:
        """Set the store's own clock, if it has one."""
        with self._section() as connection:
            connection.execute(self._sql["set_time"], {"now": now})

    def rows(self) -> list[Effect]:
        """Return the ledger."""
        return [Effect._make((*map(_plain, row), "row")) for row in self._read("rows")]

    def numbers(self) -> list[tuple[str, int]]:
        """Return the ledger as runs and the numbers that they were called with."""
        return [(str(run_id), int(number)) for run_id, number in self._read("numbers")]

    def transitions(self) -> list[Transition]:
        """Return all recorded transitions."""
        return [Transition._make(map(_plain, row)) for row in self._read("events")]

    def runs(self) -> list[RunAtEnd]:
        """Return all runs of the workload from all tables."""
        return [RunAtEnd._make(map(_plain, row)) for row in self._read("runs")]

    def attempts(self) -> list[AttemptAtEnd]:
        """Return all recorded attempts."""
        return [AttemptAtEnd._make(map(_plain, row)) for row in self._read("attempts")]

    def firings(self) -> list[FiringAtEnd]:
        """Return all recorded firings."""
        return [FiringAtEnd._make(map(_plain, row)) for row in self._read("firings")]

    def scheduled_runs(self) -> list[ScheduledRun]:
        """Return the runs that schedules created, in all queues."""
        return [ScheduledRun._make(map(_plain, row)) for row in self._read("scheduled_runs")]

    def workers(self) -> list[tuple[str, str, int]]:
        """Return every worker's id, state and pid."""
        return [(str(row[0]), str(row[1]), int(row[2])) for row in self._read("workers")]

    def has_live_worker(self, pid: int) -> bool:
        """Return whether a process is recorded as live, without waiting for a frozen writer."""
        workers = self._store.list_workers()
        return any(worker.pid == pid and not worker.has_ended for worker in workers)

    def retries(self) -> dict[str, int]:
        """Return how often each run was retried, according to the audit entries."""
        return {str(subject): int(count) for subject, count in self._read("acts")}

    def damage(self) -> list[str]:
        """Return the problems that the database's own integrity check reports."""
        return [str(row[0]) for row in self._read("integrity")]

    def _read(self, name: str) -> list[tuple[Any, ...]]:
        with self._section() as connection:
            rows: list[tuple[Any, ...]] = connection.execute(self._sql[name]).fetchall()
            return rows

    def _write(self, *names: str) -> None:
        statements = [self._sql[name] for name in names]
        with self._app.worker(concurrency=1, queues=workload.SETUP_QUEUE):
            workload.execute.enqueue(statements).result(_SETUP_SECONDS)

    @contextmanager
    def _section(self) -> Iterator[Any]:
        section = self._store.task_transaction()
        try:
            yield section.connection
        finally:
            section.rollback()


def _plain(value: Any) -> Any:  # noqa: ANN401 - a column of any type
    """Return UUIDs as text, as SQLite stores them."""
    return value if value is None or isinstance(value, int | float | str) else str(value)
