"""Schedules: the statements of `store.scheduling` on PostgreSQL."""

from collections.abc import Callable
from typing import Any, TypeVar

from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule import PreviousRuns
from duly.core.schedule_plans import DueSchedule
from duly.store import schedule_verbs
from duly.store.ops.runs import Enqueue
from duly.store.postgres.arrays import numbers, optional_numbers, optional_texts, texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.enqueue import insert
from duly.store.postgres.operate import insert_audit_entry
from duly.store.schedule_statements import FiringRow, SchedulePosition
from duly.store.statements import load

SQL = load("duly.store.postgres", "schedules")

OpT = TypeVar("OpT")
AnswerT = TypeVar("AnswerT")


class PostgresSchedules:
    """The statements, on a transaction that is open."""

    def __init__(self, session: PostgresSession) -> None:
        self._session = session

    def lock_free(self, names: list[str]) -> list[ScheduleRecord]:
        """Lock schedules, except those that other transactions have locked."""
        rows = self._session.execute(SQL["lock_free"], {"names": texts(names)}).fetchall()
        return [ScheduleRecord._make(row) for row in rows]

    def lock_one(self, name: str) -> DueSchedule | None:
        """Lock a schedule."""
        found = self._found(self._session.execute(SQL["one"], {"name": name}).fetchall())
        return found[0] if found else None

    def lock_name(self, name: str) -> int:
        """Keep others from adding a schedule of that name; return the time."""
        self._session.execute(SQL["lock_name"], {"name": name})
        ((now,),) = self._session.execute("SELECT duly_microseconds(duly_now())").fetchall()
        return int(now)

    def add_firings(self, rows: list[FiringRow], *, makes_up: bool) -> set[tuple[str, int]]:
        """Write what is not accounted for yet; return schedule and instant of what is new."""
        # Sorted, as everybody locks rows in this order.
        schedules, instants, lasts, counts, versions, outcomes, reasons, run_ids = zip(
            *sorted(rows, key=lambda row: row[:2]), strict=True
        )
        found = self._session.execute(
            SQL["add_firings"],
            {
                "schedules": texts(schedules),
                "instants": numbers(instants),
                "last_instants": numbers(lasts),
                "rows": numbers(counts),
                "versions": numbers(versions),
                "outcomes": texts(outcomes),
                "reasons": optional_texts(reasons),
                "run_ids": optional_texts(run_ids),
                "makes_up": makes_up,
            },
        )
        return set(found.fetchall())

    def rows_within(self, schedule: str, begin: int, until: int) -> list[FiringRecord]:
        """Return the rows of the ledger that reach into a span of time."""
        place = {"schedule": schedule, "begin": begin, "until": until}
        rows = self._session.execute(SQL["rows_within"], place).fetchall()
        return [FiringRecord(*row) for row in rows]

    def write_row(self, row: FiringRecord) -> None:
        """Write a row as it is to be."""
        self._session.execute(SQL["write_row"], row._asdict())

    def drop_row(self, schedule: str, instant: int) -> None:
        """Forget a row."""
        self._session.execute(SQL["drop_row"], {"schedule": schedule, "instant": instant})

    def date_back(self, schedule: str) -> None:
        """Date firings of a schedule that lie ahead as of now."""
        self._session.execute(SQL["date_back"], {"schedule": schedule})

    def release(self, schedule: str, run_id: str) -> bool:
        """Give a run to the oldest firing that waits; say whether there was one."""
        place = {"schedule": schedule, "run_id": run_id}
        return bool(self._session.execute(SQL["release"], place).rowcount)

    def drop_waiting(self, schedule: str, reason: str) -> None:
        """Skip what waits."""
        place = {"schedule": schedule, "reason": reason}
        self._session.execute(SQL["drop_waiting"], place)

    def move(self, moves: list[SchedulePosition]) -> None:
        """Move the cursors."""
        names, next_ats, look_ats, waiting, states, reasons, last_run_ids = zip(
            *sorted(moves), strict=True
        )
        self._session.execute(
            SQL["move"],
            {
                "names": texts(names),
                "next_ats": optional_numbers(next_ats),
                "look_ats": optional_numbers(look_ats),
                "waiting": numbers(waiting),
                "states": texts(states),
                "reasons": optional_texts(reasons),
                "last_run_ids": optional_texts(last_run_ids),
            },
        )

    def put(self, schedule: ScheduleRecord, pause_after: int | None) -> None:
        """Write a schedule as it is to be."""
        self._session.execute(SQL["put"], schedule._asdict() | {"pause_after": pause_after})

    def enqueue(self, ops: list[Enqueue]) -> None:
        """Accept runs."""
        insert(self._session, ops)

    def insert_audit_entry(self, actor: str, act: str, subject: str, reason: str) -> None:
        """Write down what an operator did."""
        insert_audit_entry(self._session, actor, act, subject, reason)

    def _found(self, rows: list[tuple[Any, ...]]) -> list[DueSchedule]:
        schedules = [ScheduleRecord._make(row[:-2]) for row in rows]
        last = [schedule.last_run_id for schedule in schedules if schedule.last_run_id]
        live: set[str] = set()
        if last:
            answer = self._session.execute(SQL["live"], {"run_ids": texts(last)})
            live = {run_id for (run_id,) in answer}
        found = []
        for schedule, (*_, pause_after, now) in zip(schedules, rows, strict=True):
            failures = 0 if pause_after is None else self._failures(schedule, pause_after)
            has_failed = pause_after is not None and failures >= pause_after
            standing = PreviousRuns(schedule.last_run_id in live, has_failed)
            found.append(DueSchedule(schedule, standing, now))
        return found

    def _failures(self, schedule: ScheduleRecord, limit: int) -> int:
        place = {"schedule": schedule.name, "limit": limit}
        ((count,),) = self._session.execute(SQL["failures"], place).fetchall()
        return int(count)


def _verb(
    carry_out: Callable[[PostgresSchedules, OpT], AnswerT],
) -> Callable[[PostgresSession, OpT], AnswerT]:
    return lambda session, op: carry_out(PostgresSchedules(session), op)


fire = _verb(schedule_verbs.fire)
put = _verb(schedule_verbs.put)
set_state = _verb(schedule_verbs.set_state)
run_now = _verb(schedule_verbs.run_now)
backfill = _verb(schedule_verbs.backfill)
