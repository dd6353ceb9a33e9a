"""Taking runs to run them: the only place that makes a run running."""

import json
import sqlite3
from operator import itemgetter

from duly.core.record import Claim, from_fields
from duly.store.carry_ops import ClaimCarried
from duly.store.ops import ClaimRuns
from duly.store.statements import load

SQL = load("duly.store.sqlite", "claim")

_DUE = itemgetter(*map(Claim._fields.index, ("due_at", "run_id")))
_claim = from_fields(Claim)
_PRIORITY = itemgetter(Claim._fields.index("priority"))


def claim(cursor: sqlite3.Cursor, op: ClaimRuns, now: int) -> list[Claim]:
    """Take ready runs for a live worker, lane by lane, the queues in turn.

    `now` must differ from that of every earlier claim of this worker: it marks what was taken.
    """
    found = cursor.execute(SQL["ready"], {"worker_id": op.worker_id}).fetchone()[0]
    ready: list[list[str]] = json.loads(found)
    ready.sort(key=lambda pair: (pair[0] <= op.after_queue, pair[0]))
    taken = 0
    tasks = json.dumps(op.tasks)
    for want in op.wants:
        room = want.limit
        for queue, lane in ready:
            if lane != want.lane or want.queue not in {None, queue}:
                continue
            if room <= 0:
                break
            got = cursor.execute(
                SQL["take"],
                {
                    "worker_id": op.worker_id,
                    "now": now,
                    "queue": queue,
                    "lane": want.lane,
                    "tasks": tasks,
                    "limit": room,
                },
            ).rowcount
            room -= got
            taken += got
    if not taken:
        return []
    place = {"worker_id": op.worker_id, "now": now}
    rows = json.loads(cursor.execute(SQL["taken"], place).fetchone()[0])
    # Urgent ones first, then in the order they became due.
    rows.sort(key=_DUE)
    rows.sort(key=_PRIORITY, reverse=True)
    return list(map(_claim, rows))


def claim_carried(cursor: sqlite3.Cursor, op: ClaimCarried, now: int) -> Claim | None:
    """Take one run that was handed over, if it still waits for this claim; `now` as above."""
    place = op._asdict() | {"now": now}
    if not cursor.execute(SQL["take_carried"], place).rowcount:
        return None
    cursor.execute(SQL["drop_handed"], place)
    (row,) = json.loads(cursor.execute(SQL["taken"], place).fetchone()[0])
    return _claim(row)
