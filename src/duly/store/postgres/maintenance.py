"""Recovery, registration and the bounded ticks.

Each verb runs inside a transaction that the store opens and commits.
"""

from typing import NamedTuple

from duly.clock import MICROSECONDS
from duly.core.states import PARENT_TAG
from duly.limits import KEPT_LOOK_SECONDS, PARENT_LOOK_SECONDS, TICK_BATCH, TRANSACTION_BYTES
from duly.store.count_rollup import default_retention, next_prune_position
from duly.store.ops.op import AnyOp
from duly.store.ops.upkeep import (
    DutyTurn,
    Prune,
    Pruned,
    RegisterWorker,
    Tick,
    Ticked,
)
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.steps import wake_by_events
from duly.store.statements import load

RECOVER = load("duly.store.postgres", "recover")
TICK = load("duly.store.postgres", "tick")
PRUNE = load("duly.store.postgres", "prune")

LONGEST_DUTY = "300s"
"""The time limit of a statement in a transaction that holds a duty."""


class TickResult(NamedTuple):
    """What a tick did, and how many dead rows claims have to step over by now."""

    ticked: Ticked
    dead_rows: int


def register(session: PostgresSession, op: RegisterWorker) -> None:
    """Make a worker known and live."""
    session.execute(RECOVER["register"], op._asdict())
    session.execute(RECOVER["forget_retentions"], op._asdict())
    session.execute(RECOVER["note_retentions"], op._asdict())


def has_turn(session: PostgresSession, op: AnyOp) -> bool:
    """Return whether this worker should carry out an op; if so, hold its lock until the commit."""
    turn: DutyTurn | None = getattr(op, "turn", None)
    if turn is None:
        return True
    place = turn._asdict() | {"longest": LONGEST_DUTY}
    if not turn.seconds:
        ((is_mine, _),) = session.execute(TICK["lock_duty"], place).fetchall()
        return bool(is_mine)
    return session.execute(TICK["take_turn"], place).fetchone() is not None


def note_reached(session: PostgresSession, name: str, before: str, after: str) -> None:
    """Note behind which queue the next look of this name begins, if there are too many for one."""
    if after != before:
        session.execute(TICK["note_reached"], {"name": name, "reached": after})


def tick(session: PostgresSession, op: Tick) -> TickResult:
    """Wake runs by events, promote what is due, park, un-park, expire; each up to the limit."""
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


_DROPS = (
    "drop_keys",
    "drop_firings",
    "drop_schedules",
    "drop_locks",
    "drop_events",
    "drop_acts",
    "drop_marks",
)


def prune(session: PostgresSession, op: Prune) -> Pruned:
    """Delete what is old, a bounded number of each kind."""
    place = {
        "older_than": op.older_than,
        "dead_older_than": op.older_than if op.dead_older_than is None else op.dead_older_than,
        "acts_older_than": op.acts_kept,
        "others_older_than": default_retention(op.older_than),
        "limit": min(op.limit, TICK_BATCH),
        "look": KEPT_LOOK_SECONDS * MICROSECONDS,
        "bytes": TRANSACTION_BYTES,
    }
    parents = {"parent_tag": PARENT_TAG, "parent_look": PARENT_LOOK_SECONDS * MICROSECONDS}
    brief, after = _note_brief(session, op, place)
    with session.pipeline():
        runs = session.execute(PRUNE["drop_runs"], place | parents)
        others = [session.execute(PRUNE[name], place) for name in _DROPS]
        session.execute(PRUNE["drop_workers"], place)
        session.execute(PRUNE["drop_duties"], place)
        session.execute(PRUNE["drop_limit_floors"], place)
    ((pruned, most, is_cut),) = runs.fetchall()
    most = max(brief, most, *(cursor.rowcount for cursor in others))
    return Pruned(pruned, place["limit"] if is_cut else most, after)


def _note_brief(session: PostgresSession, op: Prune, place: dict[str, int]) -> tuple[int, int]:
    """Note until when runs are kept that are so for less than the usual time.

    Return how many were looked at, and where to go on.
    """
    ((shortest, now),) = session.execute(PRUNE["shortest"]).fetchall()
    if shortest is None or shortest >= op.older_than:
        return 0, 0
    after = max(op.after, now - op.older_than)
    ((count, last),) = session.execute(PRUNE["brief"], place | {"after": after}).fetchall()
    return count, next_prune_position(after, max(after, last), now, is_full=count == place["limit"])
