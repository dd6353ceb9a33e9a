"""Schedules: the statements of `store.scheduling` on SQLite."""

import sqlite3
from collections.abc import Callable
from typing import Any, TypeVar

from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule import PreviousRuns
from duly.core.schedule_plans import DueSchedule
from duly.store import schedule_verbs
from duly.store.ops.runs import Enqueue
from duly.store.schedule_statements import FiringRow, SchedulePosition
from duly.store.sqlite.enqueue import enqueue
from duly.store.sqlite.operate import insert_audit_entry
from duly.store.statements import load

SQL = load("duly.store.sqlite", "schedules")

OpT = TypeVar("OpT")
AnswerT = TypeVar("AnswerT")


class SqliteSchedules:
    """The statements, on a transaction that is open."""

    def __init__(self, cursor: sqlite3.Cursor, now: int) -> None:
        self._cursor = cursor
        self._now = now

    def lock_free(self, names: list[str]) -> list[ScheduleRecord]:
        """Return schedules; SQLite has one writer, so nothing needs locking."""
        found = (
            self._cursor.execute(SQL["lock_free"], {"name": name}).fetchone() for name in names
        )
        return [ScheduleRecord._make(row) for row in found if row is not None]

    def lock_one(self, name: str) -> DueSchedule | None:
        """Return a schedule."""
        row = self._cursor.execute(SQL["one"], {"name": name}).fetchone()
        return None if row is None else self._found(row)

    def lock_name(self, name: str) -> int:  # noqa: ARG002 - there is one writer
        """Return the time."""
        return self._now

    def add_firings(self, rows: list[FiringRow], *, makes_up: bool) -> set[tuple[str, int]]:
        """Write what is not accounted for yet; return schedule and instant of what is new."""
        facts = {"now": self._now, "makes_up": makes_up}
        return {
            (row.schedule, row.instant)
            for row in rows
            if self._cursor.execute(SQL["add_firings"], row._asdict() | facts).rowcount
        }

    def rows_within(self, schedule: str, begin: int, until: int) -> list[FiringRecord]:
        """Return the rows of the ledger that reach into a span of time."""
        place = {"schedule": schedule, "begin": begin, "until": until}
        return [FiringRecord(*row) for row in self._cursor.execute(SQL["rows_within"], place)]

    def write_row(self, row: FiringRecord) -> None:
        """Write a row as it is to be."""
        self._cursor.execute(SQL["write_row"], row._asdict())

    def drop_row(self, schedule: str, instant: int) -> None:
        """Forget a row."""
        self._cursor.execute(SQL["drop_row"], {"schedule": schedule, "instant": instant})

    def date_back(self, schedule: str) -> None:
        """Date firings of a schedule that lie ahead as of now."""
        self._cursor.execute(SQL["date_back"], {"schedule": schedule, "now": self._now})

    def release(self, schedule: str, run_id: str) -> bool:
        """Give a run to the oldest firing that waits; say whether there was one."""
        place = {"schedule": schedule, "run_id": run_id, "now": self._now}
        return bool(self._cursor.execute(SQL["release"], place).rowcount)

    def drop_waiting(self, schedule: str, reason: str) -> None:
        """Skip what waits."""
        place = {"schedule": schedule, "reason": reason, "now": self._now}
        self._cursor.execute(SQL["drop_waiting"], place)

    def move(self, moves: list[SchedulePosition]) -> None:
        """Move the cursors."""
        for move in moves:
            self._cursor.execute(SQL["move"], move._asdict() | {"now": self._now})

    def put(self, schedule: ScheduleRecord, pause_after: int | None) -> None:
        """Write a schedule as it is to be."""
        self._cursor.execute(SQL["put"], schedule._asdict() | {"pause_after": pause_after})

    def enqueue(self, ops: list[Enqueue]) -> None:
        """Accept runs."""
        enqueue(self._cursor, ops, self._now)

    def insert_audit_entry(self, actor: str, act: str, subject: str, reason: str) -> None:
        """Write down what an operator did."""
        insert_audit_entry(self._cursor, actor, act, subject, reason, self._now)

    def _found(self, row: tuple[Any, ...]) -> DueSchedule:
        *fields, is_busy, pause_after = row
        schedule = ScheduleRecord._make(fields)
        has_failed = (
            pause_after is not None and self._failures(schedule, pause_after) >= pause_after
        )
        return DueSchedule(schedule, PreviousRuns(bool(is_busy), has_failed), self._now)

    def _failures(self, schedule: ScheduleRecord, limit: int) -> int:
        place = {"schedule": schedule.name, "limit": limit}
        return int(self._cursor.execute(SQL["failures"], place).fetchone()[0])


def _verb(
    carry_out: Callable[[SqliteSchedules, OpT], AnswerT],
) -> Callable[[sqlite3.Cursor, OpT, int], AnswerT]:
    return lambda cursor, op, now: carry_out(SqliteSchedules(cursor, now), op)


fire = _verb(schedule_verbs.fire)
put = _verb(schedule_verbs.put)
set_state = _verb(schedule_verbs.set_state)
run_now = _verb(schedule_verbs.run_now)
backfill = _verb(schedule_verbs.backfill)
