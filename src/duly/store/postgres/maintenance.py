"""Recovery, registration and the bounded ticks.

Each verb runs inside a transaction that the store opens and commits.
"""

from typing import NamedTuple

from duly.limits import TICK_BATCH, TRANSACTION_BYTES
from duly.store.ops.op import AnyOp
from duly.store.ops.upkeep import (
    DutyTurn,
    Tick,
    Ticked,
)
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.steps import wake_by_events
from duly.store.statements import load

TICK = load("postgres", "tick")

LONGEST_DUTY = "300s"
"""The time limit of a statement in a transaction that holds a duty."""


class TickResult(NamedTuple):
    """The results of a tick, and the number of dead rows that claims currently scan."""

    ticked: Ticked
    dead_rows: int


def has_turn(session: PostgresSession, op: AnyOp) -> bool:
    """Return whether this worker should carry out an op. If so, hold its lock until the commit."""
    turn: DutyTurn | None = getattr(op, "turn", None)
    if turn is None:
        return True
    place = turn._asdict() | {"longest": LONGEST_DUTY}
    if not turn.seconds:
        ((is_mine, _),) = session.execute(TICK["lock_duty"], place).fetchall()
        return bool(is_mine)
    return session.execute(TICK["take_turn"], place).fetchone() is not None


def note_reached(session: PostgresSession, name: str, before: str, after: str) -> None:
    """Record the last queue of this look, if there are too many queues for one look."""
    if after != before:
        session.execute(TICK["note_reached"], {"name": name, "reached": after})


def tick(session: PostgresSession, op: Tick) -> TickResult:
    """Wake runs by events, promote due runs, park, un-park and expire, each up to the limit."""
    place = {"limit": op.limit, "bytes": TRANSACTION_BYTES, "queues": TICK_BATCH}
    wake_by_events(session, op.limit)
    with session.pipeline():
        session.execute(TICK["unpark"], place)
        promoted = session.execute(TICK["promote"], place)
        parked = session.execute(TICK["park"], place)
        expired = session.execute(TICK["expire"], place)
        next_due = session.execute(TICK["next_due"])
    ((stuck, left_stuck, *queues),) = parked.fetchall()
    ((ended, left_expired),) = expired.fetchall()
    ((due_in, dead_rows),) = next_due.fetchall()
    if stuck < op.limit and not left_stuck:
        note_reached(session, "parked", *queues)
    has_more = left_stuck or left_expired or op.limit in {promoted.rowcount, stuck, ended}
    return TickResult(Ticked(promoted.rowcount, stuck, ended, due_in, has_more), dead_rows)
