"""Promotes, parks and expires runs, in bounded ticks."""

import json
import sqlite3

from duly.limits import (
    TRANSACTION_BYTES,
)
from duly.store.ops.upkeep import Tick, Ticked
from duly.store.sqlite.transaction import transaction_at
from duly.store.statements import load
from duly.store.verbs.operators import end_queued

TICK = load("sqlite", "tick")


def tick(cursor: sqlite3.Cursor, op: Tick, now: int) -> Ticked:
    """Promote due runs, park and unpark runs, and end expired runs; each up to the limit."""
    place = {"now": now, "limit": op.limit}
    _unpark(cursor, op.limit)
    due, _ = _take_fitting(cursor.execute(TICK["due"], place).fetchall(), TRANSACTION_BYTES)
    cursor.execute(TICK["promote"], {"ids": json.dumps(due)})
    cursor.execute(TICK["drop_promoted"], {"ids": json.dumps(due)})
    parked, has_more = _park(cursor, op.limit)
    rows = cursor.execute(TICK["expired"], place).fetchall()
    expired, _ = _take_fitting(rows, TRANSACTION_BYTES)
    for run_id in expired:
        end_queued(transaction_at(cursor, now), run_id, cause="expired", error=None)
    (due_at,) = cursor.execute(TICK["next_due"]).fetchone()
    has_more = has_more or len(expired) < len(rows) or op.limit in {len(due), parked, len(expired)}
    due_in = None if due_at is None else due_at - now
    return Ticked(len(due), parked, len(expired), due_in, has_more)


def _take_fitting(rows: list[tuple[str, int]], bytes_left: int) -> tuple[list[str], int]:
    """Return the runs up to the one that uses up the bytes, and the number of bytes left."""
    ids: list[str] = []
    for run_id, length in rows:
        if bytes_left <= 0:
            break
        ids.append(run_id)
        bytes_left -= length
    return ids, bytes_left


def _registered(cursor: sqlite3.Cursor) -> set[str]:
    return {row[0] for row in cursor.execute(TICK["registered"]).fetchall()}


def _park(cursor: sqlite3.Cursor, limit: int) -> tuple[int, bool]:
    """Park runs that cannot run now, so that claims do not read them.

    These are the runs of paused queues, and of tasks that no worker registers. Return the number of
    parked runs, and whether some are left because their arguments are large.
    """
    registered: set[str] | None = None
    parked, bytes_left = 0, TRANSACTION_BYTES
    for queue, lane, paused in cursor.execute(TICK["heads"]).fetchall():
        place = {"queue": queue, "lane": lane, "limit": limit}
        rows = cursor.execute(TICK["first_runs"], place).fetchall()
        reason = "paused"
        if not paused:
            registered = _registered(cursor) if registered is None else registered
            rows = [row for row in rows if row[2] not in registered]
            reason = "unregistered"
        ids, bytes_left = _take_fitting([row[:2] for row in rows], bytes_left)
        if ids:
            text = json.dumps(ids)
            parked += cursor.execute(TICK["park"], {"ids": text, "parked": reason}).rowcount
            cursor.execute(TICK["drop_parked"], {"ids": text})
        if len(ids) < len(rows):
            return parked, True
    return parked, False


def _unpark(cursor: sqlite3.Cursor, limit: int) -> None:
    registered: set[str] | None = None
    for reason, queue, task, paused in cursor.execute(TICK["parked_lanes"]).fetchall():
        if reason == "paused":
            may_run = not paused
        else:
            registered = _registered(cursor) if registered is None else registered
            may_run = task in registered
        if may_run:
            place = {"parked": reason, "queue": queue, "task": task, "limit": limit}
            cursor.execute(TICK["unpark"], place)
