"""Steps of runs, and events that they wait for."""

import json
import sqlite3
from pathlib import Path
from typing import Any

from duly.core.record import StepRecord
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    Rechecked,
    RecheckWaits,
    SendEvent,
    WakeRuns,
)
from duly.store.protocol import Dialogue, ExternalStatement
from duly.store.sqlite.enqueue import check_place
from duly.store.statements import load

SQL = load("duly.store.sqlite", "steps")


def begin(cursor: sqlite3.Cursor, op: BeginStep, now: int) -> StepRecord | None:
    """Note that a run has come to a step, and end one that waits for nothing any more."""
    place = op._asdict() | {"now": now}
    if not _holds(cursor, place):
        return None
    cursor.execute(SQL["begin"], place)
    cursor.execute(SQL["conclude"], place)
    return as_record(cursor.execute(SQL["one"], place).fetchone())


def end(cursor: sqlite3.Cursor, op: EndStep, now: int) -> bool:
    """Record what a step came to; said again, it changes nothing."""
    place = op._asdict() | {"now": now}
    if not _holds(cursor, place):
        return False
    cursor.execute(SQL["end"], place)
    return True


def forget(cursor: sqlite3.Cursor, op: ForgetStep, _now: int) -> bool:
    """Take back that a step has begun."""
    place = op._asdict()
    if not _holds(cursor, place):
        return False
    cursor.execute(SQL["forget"], place)
    return True


def send_event(cursor: sqlite3.Cursor, op: SendEvent, now: int) -> bool:
    """Say that something has happened; the first word counts."""
    place = op._asdict() | {"now": now}
    is_news = cursor.execute(SQL["send"], place).fetchone() is not None
    cursor.execute(SQL["rouse_waiting"], place)
    return is_news


def send_on_connection(op: SendEvent, path: Path, now: int) -> Dialogue[bool]:
    """Say it on a connection that is not ours."""
    yield from check_place(path)
    place = op._asdict() | {"now": now}
    news = yield ExternalStatement("sqlite", SQL["send"], place)
    yield ExternalStatement("sqlite", SQL["rouse_waiting"], place)
    return news is not None


def wake(cursor: sqlite3.Cursor, op: WakeRuns, now: int) -> int:
    """Let runs go on that wait for nothing any more."""
    return cursor.execute(SQL["wake"], {"run_ids": json.dumps(op.run_ids), "now": now}).rowcount


def recheck(cursor: sqlite3.Cursor, op: RecheckWaits, now: int) -> Rechecked:
    """Look at some of all runs that wait."""
    place = {"after": op.after, "limit": op.limit}
    found = [run_id for (run_id,) in cursor.execute(SQL["pending"], place)]
    roused = wake(cursor, WakeRuns(tuple(found)), now)
    return Rechecked(roused, found[-1] if len(found) == op.limit else "")


def is_wait_satisfied(cursor: sqlite3.Cursor, run_id: str, name: str) -> bool:
    """Say whether what a run is about to wait for is there already.

    Whoever brings it about writes too, and there is one writer at a time.
    """
    found = cursor.execute(SQL["is_wait_satisfied"], {"run_id": run_id, "name": name}).fetchone()
    return bool(found[0])


def as_record(row: Any) -> StepRecord:  # noqa: ANN401 - a row of the driver's
    """Return a row as a record."""
    found = StepRecord._make(row)
    return found._replace(done=bool(found.done))


def _holds(cursor: sqlite3.Cursor, place: dict[str, Any]) -> bool:
    return bool(cursor.execute(SQL["holds"], place).fetchone()[0])
