"""Changes to rows of firings that are already written: for a backfill, and after a clock step."""

from bisect import bisect_right
from collections.abc import Sequence

from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule import (
    DateTrigger,
    first_instant,
    read_rules,
    read_trigger,
    row_of,
    split_row,
)
from duly.errors import BadSchedule
from duly.store.transaction import Transaction
from duly.store.verbs.firings import SchedulePosition, lock_schedule, move

_LAST_INSTANT = 2**62 // 20
"""Later than every instant, and still a time on PostgreSQL."""


def cut_rows(transaction: Transaction, schedule: ScheduleRecord, out: Sequence[int]) -> None:
    """Take instants out of the rows that count several, so that each can have its own row."""
    trigger = read_trigger(schedule.trigger)
    for row in _rows_within(transaction, schedule.name, min(out), max(out)):
        if row.row == 1:
            continue
        # This is empty if another trigger made the row: its instants are not known.
        counted = row_of(trigger, row.instant, row.last_instant, count=row.row)
        inside = _rows_within(transaction, schedule.name, row.instant, row.last_instant)
        # An instant that was backfilled under another trigger already has its own row.
        pieces = split_row(counted, {*out, *(other.instant for other in inside if other.row == 1)})
        if counted and [len(piece) for piece in pieces] != [len(counted)]:
            _drop_row(transaction, row)
            for piece in pieces:
                new = row._replace(instant=piece[0], last_instant=piece[-1], row=len(piece))
                _write_row(transaction, new)


def rewind(transaction: Transaction, name: str) -> bool:
    """Let a schedule that fired by a clock that was ahead continue from now.

    Instants that it skipped meanwhile were not due. Their rows are deleted, and they are planned
    again when they are due. Instants that have run keep their rows, so they do not run again.
    Return whether the schedule was rewound.
    """
    found = lock_schedule(transaction, name)
    if found is None:
        return False
    schedule, now = found.schedule, found.now
    try:
        trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)
    except BadSchedule:
        # Its firings stay ahead. A process that can read the schedule finds them and rewinds it.
        return False
    transaction.run("schedules.date_back", schedule=name)
    if schedule.state == "removed":
        return True
    ran, is_paused = set(), schedule.state == "paused"
    for row in _rows_within(transaction, name, now + 1, _LAST_INSTANT):
        if row.outcome != "skipped":
            ran.add(row.instant)
            continue
        is_paused = is_paused or row.reason == "paused"
        counted = row_of(trigger, row.instant, row.last_instant, count=row.row)
        past = counted[: bisect_right(counted, now)]
        _drop_row(transaction, row)
        if past:
            kept = row._replace(last_instant=past[-1], row=len(past), fired_at=now)
            _write_row(transaction, kept)
    next_at, look_at = first_instant(name, trigger, rules, now)
    if next_at is None or (isinstance(trigger, DateTrigger) and next_at in ran):
        return True
    state = "paused" if is_paused else "active"
    position = SchedulePosition(
        name, next_at, look_at, schedule.waiting, state, schedule.reason, last_run_id=None
    )
    move(transaction, [position])
    return True


def _rows_within(
    transaction: Transaction, schedule: str, begin: int, until: int
) -> list[FiringRecord]:
    """Return the rows of a schedule with instants in a span of time."""
    span = {"schedule": schedule, "begin": begin, "until": until}
    return [FiringRecord(*row) for row in transaction.rows("schedules.rows_within", **span)]


def _drop_row(transaction: Transaction, row: FiringRecord) -> None:
    transaction.run("schedules.drop_row", schedule=row.schedule, instant=row.instant)


def _write_row(transaction: Transaction, row: FiringRecord) -> None:
    transaction.run("schedules.write_row", **row._asdict())
