"""After a backup was put back: what may have run since is not run again."""

import sqlite3

from duly.core.states import State
from duly.store.ops.operators import InterruptRestored, InterruptRestoredResult
from duly.store.sqlite.file_identity import adopt_file
from duly.store.sqlite.operate import end_queued, insert_audit_entry
from duly.store.statements import load

SQL = load("duly.store.sqlite", "restore")
RESTORED = "restored"
"""The cause of runs that end so."""


def interrupt_restored(
    cursor: sqlite3.Cursor, op: InterruptRestored, now: int
) -> InterruptRestoredResult:
    """End what waits, some at a time, as interrupted; pause schedules that came due."""
    place = {"since": op.since, "now": now, "limit": op.limit}
    found = [row[0] for row in cursor.execute(SQL["in_doubt"], place).fetchall()]
    for run_id in found:
        end_queued(
            cursor, run_id, state=State.INTERRUPTED, cause=RESTORED, error=op.reason, now=now
        )
        insert_audit_entry(cursor, op.actor, "set aside", run_id, op.reason, now)
    paused = cursor.execute(SQL["pause_schedules"], place).rowcount
    cursor.execute(SQL["end_bulk_acts"], {"now": now})
    # Counted once, when all are done: it is a walk over all that waits.
    is_last = len(found) < op.limit
    newer = cursor.execute(SQL["newer"], place).fetchone()[0] if is_last else 0
    if is_last:
        adopt_file(cursor)
    return InterruptRestoredResult(len(found), paused, newer)
