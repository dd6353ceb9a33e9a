"""Acts on many runs: one page of runs per transaction."""

import json
import sqlite3
from typing import Any

from duly.clock import MICROSECONDS
from duly.limits import BULK_RETENTION_SECONDS
from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk, count_page
from duly.store.ops.operators import Cancel, DiscardDead, RetryRun
from duly.store.sqlite import operate
from duly.store.statements import load

SQL = load("duly.store.sqlite", "bulk")
_VERBS: dict[type, Any] = {
    RetryRun: operate.retry_run,
    DiscardDead: operate.discard_dead,
    Cancel: operate.cancel,
}


def start(cursor: sqlite3.Cursor, op: StartBulk, now: int) -> str:
    """Begin an act, and forget those that ended long ago."""
    place = op._asdict() | {"now": now}
    retention = round(BULK_RETENTION_SECONDS * MICROSECONDS)
    cursor.execute(SQL["drop_old"], {"now": now, "retention": retention})
    if cursor.execute(SQL["start"], place).rowcount:
        operate.insert_audit_entry(cursor, op.actor, op.act, f"bulk {op.id}", op.reason, now)
        return op.id
    found: str = cursor.execute(SQL["known"], place).fetchone()[0]
    return found


def advance(cursor: sqlite3.Cursor, op: AdvanceBulk, now: int) -> bool:
    """Do a page of an act, and count it."""
    place = op._asdict() | {"now": now}
    del place["acts"]
    found = cursor.execute(SQL["advance"], place).fetchall()
    if not found:
        return False
    answers = [_VERBS[type(each)](cursor, each, now) for each in op.acts]
    page = count_page(op, answers, json.loads(found[0][0]))
    counts = page._asdict() | {"id": op.id, "refused": json.dumps(page.refused)}
    cursor.execute(SQL["count"], counts)
    return True


def take_over(cursor: sqlite3.Cursor, op: TakeBulk, now: int) -> list[str]:
    """Become the owner of acts whose process is silent."""
    rows = cursor.execute(SQL["take"], op._asdict() | {"now": now}).fetchall()
    return [row[0] for row in rows]
