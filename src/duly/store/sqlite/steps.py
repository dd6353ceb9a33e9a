"""Checks whether waits are over, and sends events on a caller's connection."""

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
