"""Events that are sent on a caller's connection."""

from duly.store.ops.steps import SendEvent
from duly.store.postgres.enqueue import SQL as ENQUEUE
from duly.store.postgres.enqueue import check_database
from duly.store.protocol import Dialogue, ExternalStatement
from duly.store.statements import load

SQL = load("postgres", "steps")


def send_on_connection(op: SendEvent, database: str, *, hint: bool) -> Dialogue[bool]:
    """Send an event on a caller's connection to the same database."""
    found = yield ExternalStatement("postgresql", ENQUEUE["database"], {})
    check_database(found, database)
    sent = yield ExternalStatement("postgresql", SQL["send"], op._asdict() | {"hint": hint})
    return sent is not None
