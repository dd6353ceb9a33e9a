"""Checks whether waits are over, and sends events on a caller's connection."""

import sqlite3
from pathlib import Path

from duly.store.ops.steps import SendEvent
from duly.store.protocol import Dialogue, ExternalStatement
from duly.store.sqlite.enqueue import check_place
from duly.store.statements import load

SQL = load("sqlite", "steps")


def send_on_connection(op: SendEvent, path: Path, now: int) -> Dialogue[bool]:
    """Send an event on the caller's connection."""
    yield from check_place(path)
    place = op._asdict() | {"now": now}
    is_new = False
    for part in SQL.script("send"):
        found = yield ExternalStatement("sqlite", part.sql, place)
        if part.is_answer:
            is_new = found is not None
    return is_new


def is_wait_satisfied(cursor: sqlite3.Cursor, run_id: str, name: str) -> bool:
    """Return whether the wait that a run is about to begin is already over.

    No lock is needed. A transaction that ends the wait also writes, and there is one writer at a
    time.
    """
    found = cursor.execute(SQL["is_wait_satisfied"], {"run_id": run_id, "name": name}).fetchone()
    return bool(found[0])
