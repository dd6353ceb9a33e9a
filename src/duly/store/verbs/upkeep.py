"""Upkeep of a store."""

from duly.clock import MICROSECONDS
from duly.core.states import PARENT_TAG
from duly.limits import (
    FOREVER_SECONDS,
    KEPT_LOOK_SECONDS,
    PARENT_LOOK_SECONDS,
    TICK_BATCH,
    TRANSACTION_BYTES,
)
from duly.store.count_rollup import COUNT_ROLLUPS, default_retention, next_prune_position
from duly.store.ops.upkeep import (
    Prune,
    Pruned,
    PrunePosition,
    RegisterWorker,
    RollUpCounts,
    Tick,
    Ticked,
)
from duly.store.transaction import Call, Transaction
from duly.store.verbs.steps import wake_by_events
from duly.store.verbs.verb import verb

_KINDS = (
    "prune.drop_keys",
    "prune.drop_firings",
    "prune.drop_schedules",
    "prune.drop_locks",
    "prune.drop_events",
    "prune.drop_acts",
    "prune.drop_marks",
)
"""A prune deletes a bounded number of each of these kinds, besides runs."""


@verb(RegisterWorker)
def register(transaction: Transaction, op: RegisterWorker) -> None:
    """Make a worker known and live. Refuse a worker on a copy of another store."""
    transaction.refuse_copy()
    worker = op._asdict()
    calls = ("recover.register", "recover.forget_retentions", "recover.note_retentions")
    transaction.execute_all([Call(name, worker) for name in calls])


@verb(Tick)
def tick(transaction: Transaction, op: Tick) -> Ticked:
    """Wake runs by events, promote due runs, park, unpark and expire, each up to the limit."""
    wake_by_events(transaction, op.limit)
    place = {"limit": op.limit, "bytes": TRANSACTION_BYTES, "queues": TICK_BATCH}
    names = ("tick.unpark", "tick.promote", "tick.park", "tick.expire")
    calls = [*(Call(name, place) for name in names), Call("tick.next_due", {})]
    unparked, promoted, park, expire, next_due = transaction.execute_all(calls)
    ((due_in, dead_rows),) = next_due.rows
    # A script returns no row if there was nothing to do.
    parked, left_parked, before, reached = park.rows[0] if park.rows else (0, False, "", "")
    expired, left_expired = expire.rows[0] if expire.rows else (0, False)
    if parked < op.limit and not left_parked and reached != before:
        # There are too many queues for one op. The next op continues after these.
        transaction.coordinate("tick.note_reached", name="parked", reached=reached)
    numbers = {unparked.number, promoted.number, parked, expired}
    has_more = bool(left_parked or left_expired) or max(numbers) >= op.limit
    return Ticked(promoted.number, parked, expired, due_in, has_more, dead_rows)


@verb(Prune)
def prune(transaction: Transaction, op: Prune) -> Pruned:
    """Delete what is old, a bounded number of each kind."""
    limit = min(op.limit, TICK_BATCH)
    retention = {
        "older_than": op.older_than,
        "dead_older_than": op.older_than if op.dead_older_than is None else op.dead_older_than,
        "acts_older_than": op.acts_kept,
        "others_older_than": default_retention(op.older_than),
        "never": FOREVER_SECONDS * MICROSECONDS,
        "look": KEPT_LOOK_SECONDS * MICROSECONDS,
        "parent_tag": PARENT_TAG,
        "parent_look": PARENT_LOOK_SECONDS * MICROSECONDS,
        "limit": limit,
        "bytes": TRANSACTION_BYTES,
        "ended_from": op.position.ended_from,
        "kept_from": op.position.kept_from,
    }
    looked_at, after = _note_short_retentions(transaction, op, limit)
    names = ("prune.drop_runs", *_KINDS, "prune.drop_workers")
    runs, *kinds, _ = transaction.execute_all([Call(name, retention) for name in names])
    # Without a row, there was no run to judge.
    pruned, most, is_cut, ended, kept, *_ = runs.rows[0] if runs.rows else (0, 0, False, 0, 0)
    most = limit if is_cut else most
    position = PrunePosition(after)
    if most == limit:
        # Otherwise the next prune starts over, for the runs that this one could not lock.
        place = op.position
        position = PrunePosition(after, ended or place.ended_from, kept or place.kept_from)
    return Pruned(pruned, max(looked_at, most, *(kind.number for kind in kinds)), position)


def _note_short_retentions(transaction: Transaction, op: Prune, limit: int) -> tuple[int, int]:
    """Record until when runs are kept whose tasks keep them for less than the usual time.

    Return how many runs were looked at, and where the next prune continues.
    """
    shortest = transaction.value("prune.shortest")
    if shortest is None or shortest >= op.older_than:
        return 0, 0
    place = {"older_than": op.older_than, "after": op.position.after, "limit": limit}
    found = transaction.row("prune.brief", **place)
    assert found is not None  # noqa: S101 - the statement counts
    count, last, began, now = found
    is_full = count == limit
    return count, next_prune_position(began, max(began, last), now, is_full=is_full)


@verb(RollUpCounts)
def roll_up_counts(transaction: Transaction, op: RollUpCounts) -> int:
    """Add up counts that have grown old, a bounded number of each span."""
    calls = [Call("prune.fold", each._asdict() | {"limit": op.limit}) for each in COUNT_ROLLUPS]
    return max(result.number for result in transaction.execute_all(calls))
