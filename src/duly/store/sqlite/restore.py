"""After a backup was put back: what may have run since is not run again."""

import sqlite3

from duly.core.states import State
from duly.store.admin_ops import Aside, SetAside
from duly.store.sqlite.identity import settle_in
from duly.store.sqlite.operate import end_queued, record_act
from duly.store.statements import load

SQL = load("duly.store.sqlite", "restore")
RESTORED = "restored"
"""The cause of runs that end so."""


def set_aside(cursor: sqlite3.Cursor, op: SetAside, now: int) -> Aside:
    """End what waits, some at a time, as interrupted; pause schedules that came due."""
    place = {"since": op.since, "now": now, "limit": op.limit}
    found = [row[0] for row in cursor.execute(SQL["in_doubt"], place).fetchall()]
    for run_id in found:
        end_queued(
            cursor, run_id, state=State.INTERRUPTED, cause=RESTORED, error=op.reason, now=now
        )
        record_act(cursor, op.actor, "set aside", run_id, op.reason, now)
    paused = cursor.execute(SQL["pause_schedules"], place).rowcount
    cursor.execute(SQL["end_bulk_acts"], {"now": now})
    # Counted once, when all are done: it is a walk over all that waits.
    is_last = len(found) < op.limit
    newer = cursor.execute(SQL["newer"], place).fetchone()[0] if is_last else 0
    if is_last:
        settle_in(cursor)
    return Aside(len(found), paused, newer)
