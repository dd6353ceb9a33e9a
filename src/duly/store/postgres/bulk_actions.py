"""Acts on many runs: one page of runs per transaction."""

import json
from typing import Any

from duly.clock import MICROSECONDS
from duly.limits import BULK_RETENTION_SECONDS
from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk, count_page
from duly.store.ops.operators import Cancel, DiscardDead, RetryRun
from duly.store.postgres import operate
from duly.store.postgres.connection import PostgresSession
from duly.store.statements import load

SQL = load("duly.store.postgres", "bulk")
_VERBS: dict[type, Any] = {
    RetryRun: operate.retry_run,
    DiscardDead: operate.discard_dead,
    Cancel: operate.cancel,
}


def start(session: PostgresSession, op: StartBulk) -> str:
    """Begin an act, and forget those that ended long ago."""
    place = op._asdict()
    retention = round(BULK_RETENTION_SECONDS * MICROSECONDS)
    session.execute(SQL["drop_old"], {"retention": retention})
    while True:
        if session.execute(SQL["start"], place).rowcount:
            operate.insert_audit_entry(session, op.actor, op.act, f"bulk {op.id}", op.reason)
            return op.id
        rows = session.execute(SQL["known"], place).fetchall()
        if rows:  # Between the two, the one that was in the way may have ended.
            return str(rows[0][0])


def advance(session: PostgresSession, op: AdvanceBulk) -> bool:
    """Do a page of an act, and count it."""
    place = op._asdict()
    del place["acts"]
    found = session.execute(SQL["advance"], place).fetchall()
    if not found:
        return False
    # All transactions lock runs in the order of their ids, as ticks do.
    acts = tuple(sorted(op.acts, key=lambda each: each.run_id))
    answers = [_VERBS[type(each)](session, each) for each in acts]
    page = count_page(op._replace(acts=acts), answers, json.loads(found[0][0]))
    counts = page._asdict() | {"id": op.id, "refused": json.dumps(page.refused)}
    session.execute(SQL["count"], counts)
    return True


def take_over(session: PostgresSession, op: TakeBulk) -> list[str]:
    """Become the owner of acts whose process is silent."""
    return [row[0] for row in session.execute(SQL["take"], op._asdict()).fetchall()]
