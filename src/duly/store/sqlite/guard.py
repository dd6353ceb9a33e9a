"""Keys of the guard, and dead letters of other engines."""

import sqlite3
from typing import Any, NamedTuple

from duly.clock import Clock, boot_id
from duly.limits import FORGET_BATCH
from duly.store.ops.guard import (
    AcquireKey,
    EndDeadLetter,
    FailKey,
    FinishKey,
    ForgetKey,
    Guarded,
    PutDeadLetter,
    RenewKey,
    guarded_from_row,
)
from duly.store.statements import load

SQL = load("duly.store.sqlite", "guard")


class ClockReadings(NamedTuple):
    """Wall time, by which keys are kept, and time since the machine was started, for leases."""

    now: int
    uptime: int
    boot: str


def read_times(clock: Clock) -> ClockReadings:
    """Read both clocks."""
    return ClockReadings(clock.now(), clock.uptime(), boot_id().hex())


def acquire(cursor: sqlite3.Cursor, op: AcquireKey, times: ClockReadings) -> Guarded:
    """Take a key, unless somebody holds it or its body is done."""
    place = op._asdict() | times._asdict()
    if cursor.execute(SQL["acquire"], place).rowcount:
        cursor.execute(SQL["count_fence"])
    return guarded_from_row(op, cursor.execute(SQL["standing"], place).fetchone())


def renew(cursor: sqlite3.Cursor, op: RenewKey, times: ClockReadings) -> bool:
    """Give a holder its whole lease again."""
    return bool(cursor.execute(SQL["renew"], op._asdict() | times._asdict()).rowcount)


def finish(cursor: sqlite3.Cursor, op: FinishKey, times: ClockReadings) -> bool:
    """Record that a body is done, and forget a few keys whose time is over."""
    return _end(cursor, "finish", "done", op._asdict() | times._asdict())


def fail(cursor: sqlite3.Cursor, op: FailKey, times: ClockReadings) -> bool:
    """Let go of a key whose body failed."""
    return _end(cursor, "fail", "failed", op._asdict() | times._asdict())


def forget(cursor: sqlite3.Cursor, op: ForgetKey, times: ClockReadings) -> bool | None:
    """Forget a key that nobody holds."""
    place = op._asdict() | times._asdict()
    if cursor.execute(SQL["forget"], place).rowcount:
        return True
    return None if cursor.execute(SQL["standing"], place).fetchone() else False


def put_dead_letter(cursor: sqlite3.Cursor, op: PutDeadLetter, times: ClockReadings) -> bool:
    """Keep a dead letter, and forget a few whose time is over."""
    place = op._asdict() | times._asdict() | {"limit": FORGET_BATCH}
    cursor.execute(SQL["drop_letters"], place)
    return bool(cursor.execute(SQL["put_dead_letter"], place).rowcount)


def end_dead_letter(cursor: sqlite3.Cursor, op: EndDeadLetter, times: ClockReadings) -> bool:
    """Say what became of a dead letter."""
    return bool(cursor.execute(SQL["end_dead_letter"], op._asdict() | times._asdict()).rowcount)


def _end(cursor: sqlite3.Cursor, how: str, state: str, place: dict[str, Any]) -> bool:
    place |= {"state": state, "limit": FORGET_BATCH}
    is_ours = cursor.execute(SQL[how], place).rowcount
    # Said a second time: the first answer may have been lost.
    if not is_ours and not cursor.execute(SQL["has_ended"], place).fetchone()[0]:
        return False
    cursor.execute(SQL["drop_forgotten"], place)
    return True
