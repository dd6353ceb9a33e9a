"""After a backup was put back: what may have run since is not run again."""

from duly.core.states import State
from duly.store.ops.operators import InterruptRestored, InterruptRestoredResult
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.operate import end_queued, insert_audit_entry
from duly.store.statements import load

SQL = load("duly.store.postgres", "restore")
RESTORED = "restored"
"""The cause of runs that end so."""


def interrupt_restored(session: PostgresSession, op: InterruptRestored) -> InterruptRestoredResult:
    """End what waits, some at a time, as interrupted; pause schedules that came due."""
    place = {"since": op.since, "limit": op.limit}
    found = [row[0] for row in session.execute(SQL["in_doubt"], place).fetchall()]
    for run_id in found:
        if end_queued(session, run_id, state=State.INTERRUPTED, cause=RESTORED, error=op.reason):
            insert_audit_entry(session, op.actor, "set aside", run_id, op.reason)
    paused = session.execute(SQL["pause_schedules"], place).rowcount
    session.execute(SQL["end_bulk_acts"])
    # Counted once, when all are done: it is a walk over all that waits.
    is_last = len(found) < op.limit
    newer = session.execute(SQL["newer"], place).fetchall()[0][0] if is_last else 0
    return InterruptRestoredResult(len(found), paused, newer)
