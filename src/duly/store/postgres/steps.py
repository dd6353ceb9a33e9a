"""Waits that are satisfied, and events that are sent on a caller's connection."""

from collections.abc import Sequence

from duly.store.ops.steps import SendEvent
from duly.store.postgres.arrays import texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.enqueue import SQL as ENQUEUE
from duly.store.postgres.enqueue import check_database
from duly.store.protocol import Dialogue, ExternalStatement
from duly.store.statements import load

SQL = load("postgres", "steps")


def send_on_connection(op: SendEvent, database: str, *, hint: bool) -> Dialogue[bool]:
    """Send an event on a caller's connection to the same database."""
    found = yield ExternalStatement("postgresql", ENQUEUE["database"], {})
    check_database(found, database)
    sent = yield ExternalStatement(
        "postgresql", SQL["send_and_hint" if hint else "send"], op._asdict()
    )
    return sent is not None


def find_satisfied_waits(session: PostgresSession, waits: Sequence[tuple[str, str]]) -> set[str]:
    """Return the runs whose wait, which is about to begin, is already satisfied.

    There are two statements. The second sees commits made while the first waited for its locks.
    """
    ids, names = zip(*waits, strict=True)
    place = {"ids": texts(ids), "names": texts(names)}
    session.execute(SQL["lock_waits"], place)
    return {run_id for (run_id,) in session.execute(SQL["is_wait_satisfied"], place).fetchall()}
