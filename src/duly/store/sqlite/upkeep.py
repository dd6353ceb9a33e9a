"""Recovery, registration and the bounded ticks."""

import json
import sqlite3

from duly.core.record import HeldRun
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.limits import TICK_BATCH
from duly.store.folding import folds
from duly.store.ops import (
    FoldTallies,
    HandBackUnknown,
    Judge,
    Prune,
    Recover,
    RecoverOrphans,
    RegisterWorker,
    Settle,
    Tick,
    Ticked,
)
from duly.store.sqlite.operate import end_queued
from duly.store.sqlite.settle import settle
from duly.store.statements import load

RECOVER = load("duly.store.sqlite", "recover")
TICK = load("duly.store.sqlite", "tick")
PRUNE = load("duly.store.sqlite", "prune")


def register(cursor: sqlite3.Cursor, op: RegisterWorker, now: int) -> None:
    """Make a worker known and live."""
    cursor.execute(RECOVER["register"], op._asdict() | {"now": now})


def recover(cursor: sqlite3.Cursor, op: Recover, now: int) -> list[str]:
    """End a worker, then settle what it holds."""
    state = "stopped" if op.stopped else "dead"
    place = {"worker_id": op.worker_id}
    cursor.execute(RECOVER["end_worker"], place | {"state": state, "now": now})
    return _settle_held(cursor, cursor.execute(RECOVER["held"], place).fetchall(), op.judge, now)


def recover_orphans(cursor: sqlite3.Cursor, op: RecoverOrphans, now: int) -> list[str]:
    """Settle running runs whose worker is not live, whatever happened before."""
    rows = cursor.execute(RECOVER["orphans"], {"limit": op.limit}).fetchall()
    return _settle_held(cursor, rows, op.judge, now)


def hand_back_unknown(cursor: sqlite3.Cursor, op: HandBackUnknown, now: int) -> list[str]:
    """Give back what the store says this worker holds and it has never heard of."""
    rows = cursor.execute(RECOVER["held"], {"worker_id": op.worker_id}).fetchall()
    unknown = [row for row in rows if row[0] not in op.held]
    return _settle_held(cursor, unknown, hand_back, now)


def hand_back(run: HeldRun) -> tuple[str, Finish | Requeue, None]:
    """Judge a claim that no body ever used."""
    if run.cancel_requested:
        return "handed_back", Finish(State.CANCELLED, "requested"), None
    again = Requeue(0.0, run.attempt, run.retries_used, run.crashes, run.lane, recorded=False)
    return "handed_back", again, None


def _settle_held(
    cursor: sqlite3.Cursor, rows: list[tuple[object, ...]], judge: Judge, now: int
) -> list[str]:
    held = [HeldRun._make(row) for row in rows]
    ops = []
    for run in held:
        outcome, verdict, error = judge(run)
        ops.append(
            Settle(run.run_id, run.claim_number, outcome, verdict, 0, error, keyed=run.keyed)
        )
    settle(cursor, ops, now)
    return [run.run_id for run in held]


def tick(cursor: sqlite3.Cursor, op: Tick, now: int) -> Ticked:
    """Promote what is due, park and un-park, end what expired; each up to the limit."""
    place = {"now": now, "limit": op.limit}
    _unpark(cursor, op.limit)
    promoted = cursor.execute(TICK["promote"], place).rowcount
    cursor.execute(TICK["drop_promoted"], place)
    parked = _park(cursor, op.limit)
    expired = [row[0] for row in cursor.execute(TICK["expired"], place).fetchall()]
    for run_id in expired:
        end_queued(cursor, run_id, cause="expired", error=None, now=now)
    (due_at,) = cursor.execute(TICK["next_due"]).fetchone()
    return Ticked(promoted, parked, len(expired), None if due_at is None else due_at - now)


def _registered(cursor: sqlite3.Cursor) -> set[str]:
    return {row[0] for row in cursor.execute(TICK["registered"]).fetchall()}


def _park(cursor: sqlite3.Cursor, limit: int) -> int:
    """Move out of the claims' way what cannot run: paused queues, tasks nobody registers."""
    registered: set[str] | None = None
    parked = 0
    for queue, lane, paused in cursor.execute(TICK["heads"]).fetchall():
        place = {"queue": queue, "lane": lane, "limit": limit}
        first = cursor.execute(TICK["first_runs"], place).fetchall()
        if paused:
            ids, reason = [run_id for run_id, _ in first], "paused"
        else:
            registered = _registered(cursor) if registered is None else registered
            ids, reason = [i for i, task in first if task not in registered], "unregistered"
        if ids:
            text = json.dumps(ids)
            parked += cursor.execute(TICK["park"], {"ids": text, "parked": reason}).rowcount
            cursor.execute(TICK["drop_parked"], {"ids": text})
    return parked


def _unpark(cursor: sqlite3.Cursor, limit: int) -> None:
    registered: set[str] | None = None
    for reason, queue, task, paused in cursor.execute(TICK["parked_lanes"]).fetchall():
        if reason == "paused":
            may_run = not paused
        else:
            registered = _registered(cursor) if registered is None else registered
            may_run = task in registered
        if may_run:
            place = {"parked": reason, "queue": queue, "task": task, "limit": limit}
            cursor.execute(TICK["unpark"], place)


def prune(cursor: sqlite3.Cursor, op: Prune, now: int) -> int:
    """Delete old finished runs and expired keys, a bounded number of each."""
    before = now - op.older_than
    limit = min(op.limit, TICK_BATCH)
    died_before = before if op.dead_older_than is None else now - op.dead_older_than
    rows = cursor.execute(PRUNE["old_runs"], {"before": before, "limit": limit}).fetchall()
    rows += cursor.execute(PRUNE["old_dead"], {"before": died_before, "limit": limit}).fetchall()
    for (run_id,) in rows:
        for name in ("drop_run", "drop_attempts", "drop_logs", "drop_tags", "drop_steps"):
            cursor.execute(PRUNE[name], {"run_id": run_id})
    cursor.execute(PRUNE["drop_keys"], {"now": now, "limit": limit})
    cursor.execute(PRUNE["drop_firings"], {"before": before, "limit": limit})
    cursor.execute(PRUNE["drop_events"], {"before": before, "limit": limit})
    cursor.execute(PRUNE["drop_marks"], {"before": before, "limit": limit})
    cursor.execute(PRUNE["drop_workers"], {"before": before})
    return len(rows)


def fold(cursor: sqlite3.Cursor, op: FoldTallies, now: int) -> int:
    """Add tallies up that have grown old, a bounded number of each span."""
    most = 0
    for each in folds(now):
        place = each._asdict() | {"limit": op.limit}
        cursor.execute(PRUNE["fold"], place)
        most = max(most, cursor.execute(PRUNE["fold_away"], place).rowcount)
    return most
