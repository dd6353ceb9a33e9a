"""Taking runs to run them: the only place that makes a run running."""

import json
import sqlite3

from duly.core.record import Claim
from duly.store.protocol import ClaimRuns, Want
from duly.store.statements import load

SQL = load("duly.store.sqlite", "claim")


def claim(cursor: sqlite3.Cursor, op: ClaimRuns, now: int) -> list[Claim]:
    """Take ready runs for a live worker, lane by lane, the queues in turn.

    `now` must differ from that of every earlier claim of this worker: it marks what was taken.
    """
    if cursor.execute(SQL["is_live"], {"worker_id": op.worker_id}).fetchone() is None:
        return []
    ready: list[str] = json.loads(cursor.execute(SQL["queues"]).fetchone()[0])
    turn = sorted(ready, key=lambda queue: (queue <= op.after_queue, queue))
    taken = 0
    tasks = json.dumps(op.tasks)
    for want in op.wants:
        room = want.limit
        for queue in _asked(want, turn):
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
    claims = [Claim._make(row) for row in rows]
    claims.sort(key=lambda claim: (-claim.priority, claim.due_at, claim.run_id))
    return claims


def _asked(want: Want, ready: list[str]) -> list[str]:
    if want.queue is None:
        return ready
    return [want.queue] if want.queue in ready else []
