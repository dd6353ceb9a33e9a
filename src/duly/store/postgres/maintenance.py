"""Recovery, registration and the bounded ticks.

Each verb runs inside a transaction that the store opens and commits.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from duly.clock import MICROSECONDS
from duly.core.record import ClaimedRun
from duly.core.states import PARENT_TAG, State
from duly.core.verdict import Finish, Requeue
from duly.limits import KEPT_LOOK_SECONDS, PARENT_LOOK_SECONDS, TICK_BATCH, TRANSACTION_BYTES
from duly.store.count_rollup import count_rollups, default_retention, next_prune_position
from duly.store.ops.op import AnyOp
from duly.store.ops.recovery import HandBackUnknown, Judge, Recover, RecoverOrphans
from duly.store.ops.runs import Settle
from duly.store.ops.upkeep import (
    DutyTurn,
    Prune,
    Pruned,
    RegisterWorker,
    RollUpCounts,
    Tick,
    Ticked,
)
from duly.store.postgres.arrays import texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.settle import settle
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


def recover(session: PostgresSession, op: Recover) -> list[str] | None:
    """End a worker that has not beaten since, then settle what it holds."""
    place = {"worker_id": op.worker_id}
    state = "stopped" if op.stopped else "dead"
    if op.beats is not None:
        locked = session.execute(RECOVER["lock_worker"], place).fetchone()
        if locked is not None and locked[0] != op.beats:
            return None
    with session.pipeline():
        session.execute(RECOVER["lock_worker"], place)
        session.execute(RECOVER["end_worker"], place | {"state": state})
        held = session.execute(RECOVER["held"], place)
    return _settle_held(session, held.fetchall(), op.judge)


def recover_orphans(session: PostgresSession, op: RecoverOrphans) -> list[str]:
    """Settle running runs whose worker is not live, whatever happened before."""
    found = session.execute(RECOVER["orphans"], {"limit": op.limit}).fetchall()
    if not found:
        return []
    ids = texts([run_id for (run_id,) in found])
    rows = session.execute(RECOVER["still_orphaned"], {"ids": ids}).fetchall()
    return _settle_held(session, rows, op.judge)


def hand_back_unknown(session: PostgresSession, op: HandBackUnknown) -> list[str]:
    """Give back what the store says this worker holds and it has never heard of."""
    rows = session.execute(RECOVER["held"], {"worker_id": op.worker_id}).fetchall()
    return _settle_held(session, [row for row in rows if row[0] not in op.held], hand_back)


def hand_back(run: ClaimedRun) -> tuple[str, Finish | Requeue, None]:
    """Judge a claim that no body ever used."""
    if run.cancel_requested:
        return "handed_back", Finish(State.CANCELLED, "requested"), None
    again = Requeue(0.0, run.attempt, run.retries_used, run.crashes, run.lane, recorded=False)
    return "handed_back", again, None


def _settle_held(
    session: PostgresSession, rows: Sequence[tuple[Any, ...]], judge: Judge
) -> list[str]:
    held = [ClaimedRun._make(row) for row in rows]
    ops = []
    for run in held:
        outcome, verdict, error = judge(run)
        ops.append(
            Settle(
                run.run_id, run.claim_number, outcome, verdict, run.elapsed, error, keyed=run.keyed
            )
        )
    if ops:
        settle(session, ops)
    return [run.run_id for run in held]


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


def roll_up_counts(session: PostgresSession, op: RollUpCounts) -> int:
    """Add tallies up that have grown old, a bounded number of each span."""
    ((now,),) = session.execute(PRUNE["now"]).fetchall()
    with session.pipeline():
        added = [
            session.execute(PRUNE["fold"], each._asdict() | {"limit": op.limit})
            for each in count_rollups(now)
        ]
        added.append(session.execute(PRUNE["fold_accounts"], {"limit": op.limit}))
    return max(int(cursor.fetchall()[0][0]) for cursor in added)
