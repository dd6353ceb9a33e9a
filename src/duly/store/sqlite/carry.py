"""Handing runs over to another engine."""

import json
import sqlite3
from typing import Any

from duly.carrier import Message
from duly.store.carry_ops import HandAgain, HandOver
from duly.store.statements import load

SQL = load("duly.store.sqlite", "carry")


def hand_over(cursor: sqlite3.Cursor, op: HandOver, now: int) -> list[Message]:
    """Mark what is to be sent to its engine, for the first time or again."""
    messages = _stale(cursor, op, now)
    place: dict[str, Any] = {"tasks": json.dumps(op.tasks), "now": now, "stale": op.stale}
    for queue, lane in cursor.execute(SQL["lanes"]).fetchall():
        room = op.limit - len(messages)
        if room <= 0:
            break
        where = place | {"queue": queue, "lane": lane, "limit": room}
        for row in cursor.execute(SQL["fresh"], where).fetchall():
            message = Message._make(row)
            cursor.execute(SQL["hand"], {"run_id": message.run_id})
            cursor.execute(SQL["note"], place | {"run_id": message.run_id})
            messages.append(message)
    return messages


def hand_again(cursor: sqlite3.Cursor, op: HandAgain, now: int) -> int:
    """Hand runs over again a little later."""
    return sum(
        cursor.execute(SQL["put_off"], {"run_id": run_id, "after": op.after, "now": now}).rowcount
        for run_id in op.run_ids
    )


def _stale(cursor: sqlite3.Cursor, op: HandOver, now: int) -> list[Message]:
    messages = []
    rows = cursor.execute(SQL["stale"], {"now": now, "limit": op.limit}).fetchall()
    for run_id, claim_number, task, queue, priority, times in rows:
        place = {"run_id": run_id, "now": now, "after": op.stale}
        if claim_number is None:
            # It was claimed, or has ended.
            cursor.execute(SQL["forget"], place)
        elif task not in op.tasks:
            cursor.execute(SQL["put_off"], place)
        else:
            after = min(op.stale * 2 ** min(times, 30), op.longest)
            cursor.execute(SQL["note_again"], place | {"after": after})
            messages.append(Message(run_id, claim_number, task, queue, priority))
    return messages
