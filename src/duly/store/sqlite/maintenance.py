"""Recovery, registration and the bounded ticks."""

import json
import sqlite3

from duly.clock import MICROSECONDS
from duly.core.states import PARENT_TAG
from duly.limits import (
    FOREVER_SECONDS,
    KEPT_LOOK_SECONDS,
    PARENT_LOOK_SECONDS,
    TICK_BATCH,
    TRANSACTION_BYTES,
)
from duly.store.count_rollup import default_retention, next_prune_position
from duly.store.ops.upkeep import Prune, Pruned, RegisterWorker, Tick, Ticked
from duly.store.sqlite.clock_readings import ClockReadings
from duly.store.sqlite.file_identity import check_for_worker
from duly.store.sqlite.transaction import transaction_at
from duly.store.statements import load
from duly.store.verbs.operators import end_queued

RECOVER = load("duly.store.sqlite", "recover")
TICK = load("duly.store.sqlite", "tick")
PRUNE = load("duly.store.sqlite", "prune")


def register(cursor: sqlite3.Cursor, op: RegisterWorker, now: int) -> None:
    """Make a worker known and live; refuse one on a copy of another store."""
    check_for_worker(cursor)
    cursor.execute(RECOVER["register"], op._asdict() | {"now": now})
    cursor.execute(RECOVER["forget_retentions"], op._asdict())
    cursor.execute(RECOVER["note_retentions"], op._asdict())


def tick(cursor: sqlite3.Cursor, op: Tick, now: int) -> Ticked:
    """Promote what is due, park and un-park, end what expired; each up to the limit."""
    place = {"now": now, "limit": op.limit}
    _unpark(cursor, op.limit)
    due, _ = _take_fitting(cursor.execute(TICK["due"], place).fetchall(), TRANSACTION_BYTES)
    cursor.execute(TICK["promote"], {"ids": json.dumps(due)})
    cursor.execute(TICK["drop_promoted"], {"ids": json.dumps(due)})
    parked, has_more = _park(cursor, op.limit)
    rows = cursor.execute(TICK["expired"], place).fetchall()
    expired, _ = _take_fitting(rows, TRANSACTION_BYTES)
    for run_id in expired:
        end_queued(transaction_at(cursor, now), run_id, cause="expired", error=None)
    (due_at,) = cursor.execute(TICK["next_due"]).fetchone()
    has_more = has_more or len(expired) < len(rows) or op.limit in {len(due), parked, len(expired)}
    due_in = None if due_at is None else due_at - now
    return Ticked(len(due), parked, len(expired), due_in, has_more)


def _take_fitting(rows: list[tuple[str, int]], bytes_left: int) -> tuple[list[str], int]:
    """Return the runs up to the one whose arguments reach a number of bytes, and what is left."""
    ids: list[str] = []
    for run_id, length in rows:
        if bytes_left <= 0:
            break
        ids.append(run_id)
        bytes_left -= length
    return ids, bytes_left


def _registered(cursor: sqlite3.Cursor) -> set[str]:
    return {row[0] for row in cursor.execute(TICK["registered"]).fetchall()}


def _park(cursor: sqlite3.Cursor, limit: int) -> tuple[int, bool]:
    """Move out of the claims' way what cannot run: paused queues, tasks nobody registers.

    Return how many, and whether some are left because their arguments are large.
    """
    registered: set[str] | None = None
    parked, bytes_left = 0, TRANSACTION_BYTES
    for queue, lane, paused in cursor.execute(TICK["heads"]).fetchall():
        place = {"queue": queue, "lane": lane, "limit": limit}
        rows = cursor.execute(TICK["first_runs"], place).fetchall()
        reason = "paused"
        if not paused:
            registered = _registered(cursor) if registered is None else registered
            rows = [row for row in rows if row[2] not in registered]
            reason = "unregistered"
        ids, bytes_left = _take_fitting([row[:2] for row in rows], bytes_left)
        if ids:
            text = json.dumps(ids)
            parked += cursor.execute(TICK["park"], {"ids": text, "parked": reason}).rowcount
            cursor.execute(TICK["drop_parked"], {"ids": text})
        if len(ids) < len(rows):
            return parked, True
    return parked, False


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


def prune(cursor: sqlite3.Cursor, op: Prune, times: ClockReadings) -> Pruned:
    """Delete what is old, a bounded number of each kind."""
    now = times.now
    limit = min(op.limit, TICK_BATCH)
    died = op.older_than if op.dead_older_than is None else op.dead_older_than
    place = {
        "now": now,
        "limit": limit,
        "older_than": op.older_than,
        "dead_older_than": died,
        "before": now - op.older_than,
        "died_before": now - died,
        "never": now + FOREVER_SECONDS * MICROSECONDS,
    }
    parents = {"parent_tag": PARENT_TAG, "parent_look": PARENT_LOOK_SECONDS * MICROSECONDS}
    brief, after = _note_brief(cursor, op, place)
    found = [
        [run_id for (run_id,) in cursor.execute(PRUNE[name], place).fetchall()]
        for name in ("old_runs", "old_dead", "no_longer_kept")
    ]
    old = place | parents | {"ids": json.dumps([run_id for ids in found for run_id in ids])}
    judged = cursor.execute(PRUNE["judged"], old).fetchall()
    pruned, is_cut = _drop_runs(cursor, judged, now)
    acts = {"before": now - op.acts_kept, "limit": limit}
    other = {"before": now - default_retention(op.older_than), "limit": limit}
    dropped = [
        cursor.execute(PRUNE["drop_keys"], place).rowcount,
        cursor.execute(PRUNE["drop_firings"], place).rowcount,
        cursor.execute(PRUNE["drop_schedules"], other).rowcount,
        _drop_locks(cursor, times, default_retention(op.older_than), limit),
        cursor.execute(PRUNE["drop_events"], place).rowcount,
        cursor.execute(PRUNE["drop_acts"], acts).rowcount,
        cursor.execute(PRUNE["drop_marks"], other).rowcount,
    ]
    cursor.execute(PRUNE["drop_workers"], other)
    return Pruned(pruned, limit if is_cut else max(brief, *map(len, found), *dropped), after)


def _drop_locks(cursor: sqlite3.Cursor, times: ClockReadings, older_than: int, limit: int) -> int:
    """Delete locks that nobody has used for long."""
    place = {"boot": times.boot, "idle_since": times.uptime - older_than, "limit": limit}
    found = cursor.execute(PRUNE["idle_locks"], place).fetchall()
    if found:
        cursor.execute(PRUNE["keep_fence"], {"fence": max(fence for _, fence in found)})
        cursor.execute(PRUNE["drop_locks"], {"names": json.dumps([name for name, _ in found])})
    return len(found)


def _note_brief(cursor: sqlite3.Cursor, op: Prune, place: dict[str, int]) -> tuple[int, int]:
    """Note until when runs are kept that are so for less than the usual time.

    Return how many were looked at, and where to go on.
    """
    (shortest,) = cursor.execute(PRUNE["shortest"]).fetchone()
    if shortest is None or shortest >= op.older_than:
        return 0, 0
    after = max(op.after, place["before"])
    rows = cursor.execute(PRUNE["brief"], place | {"after": after}).fetchall()
    for run_id, _, until in rows:
        if until is not None:
            cursor.execute(PRUNE["keep"], {"run_id": run_id, "until": until})
    last = rows[-1][1] if rows else after
    return len(rows), next_prune_position(
        after, last, place["now"], is_full=len(rows) == place["limit"]
    )


def _drop_runs(
    cursor: sqlite3.Cursor, rows: list[tuple[str, int, int, int]], now: int
) -> tuple[int, bool]:
    """Delete the runs that are kept no longer, with all that hangs on them; put off the others.

    Return how many are gone, and whether some are left because the payloads were large.
    """
    gone: list[int] = []
    size, is_cut = 0, False
    for run_id, gone_at, usual_until, own_until in rows:
        if max(usual_until, own_until) > now:
            latest = now + KEPT_LOOK_SECONDS * MICROSECONDS
            until = min(own_until, latest) if own_until > now else None
            cursor.execute(PRUNE["keep"], {"run_id": run_id, "until": until})
            continue
        if size >= TRANSACTION_BYTES:
            is_cut = True
            break
        gone.append(gone_at)
        place = {"run_id": run_id}
        size += sum(found for (found,) in cursor.execute(PRUNE["drop_run"], place).fetchall())
        for name in ("drop_attempts", "drop_logs", "drop_tags", "drop_steps"):
            cursor.execute(PRUNE[name], place)
    if gone:
        cursor.execute(PRUNE["count"], {"pruned": len(gone), "until": max(gone)})
    return len(gone), is_cut
