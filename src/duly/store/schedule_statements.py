"""The statements of schedules that each database has in its own form."""

from typing import NamedTuple, Protocol

from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule_plans import DueSchedule
from duly.store.ops.runs import Enqueue


class FiringRow(NamedTuple):
    """A row for the ledger."""

    schedule: str
    instant: int
    last_instant: int
    row: int
    version: int
    outcome: str
    reason: str | None
    run_id: str | None


class SchedulePosition(NamedTuple):
    """Where a schedule stands after a look."""

    name: str
    next_at: int | None
    look_at: int | None
    waiting: int
    state: str
    reason: str | None
    last_run_id: str | None


class ScheduleStatements(Protocol):
    """The statements, on an open transaction of one database."""

    def lock_free(self, names: list[str]) -> list[ScheduleRecord]:
        """Lock schedules, except those that other transactions have locked."""
        ...

    def lock_one(self, name: str) -> DueSchedule | None: ...
    def lock_name(self, name: str) -> int:
        """Keep others from adding a schedule of that name; return the time."""
        ...

    def add_firings(self, rows: list[FiringRow], *, makes_up: bool) -> set[tuple[str, int]]:
        """Write what is not accounted for yet; return schedule and instant of what is new."""
        ...

    def rows_within(self, schedule: str, begin: int, until: int) -> list[FiringRecord]:
        """Return the rows of the ledger that reach into a span of time."""
        ...

    def write_row(self, row: FiringRecord) -> None:
        """Write a row as it is to be."""
        ...

    def drop_row(self, schedule: str, instant: int) -> None: ...
    def date_back(self, schedule: str) -> None:
        """Date firings of a schedule that lie ahead as of now."""
        ...

    def release(self, schedule: str, run_id: str) -> bool:
        """Give a run to the oldest firing that waits; say whether there was one."""
        ...

    def drop_waiting(self, schedule: str, reason: str) -> None: ...
    def move(self, moves: list[SchedulePosition]) -> None: ...
    def put(self, schedule: ScheduleRecord, pause_after: int | None) -> None: ...
    def enqueue(self, ops: list[Enqueue]) -> None: ...
    def insert_audit_entry(self, actor: str, act: str, subject: str, reason: str) -> None: ...
