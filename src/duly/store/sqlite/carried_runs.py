"""Handing runs over to another engine, and back if their task has lost its carrier."""

import json
import sqlite3
from typing import Any

from duly.carrier import CarrierMessage
from duly.core.states import agreed_lanes
from duly.core.verdict import undelivered_verdict
from duly.store.ops.carriers import HandedOver, HandOver, PostponeHandOver, RerouteRuns
from duly.store.sqlite.transaction import transaction_at
from duly.store.statements import load
from duly.store.verbs.operators import end_queued

SQL = load("duly.store.sqlite", "carry")


def hand_over(cursor: sqlite3.Cursor, op: HandOver, now: int) -> HandedOver:
    """Mark what is to be sent to its engine, at first or again; end what was so too often."""
    messages, worn = _stale(cursor, op, now)
    place: dict[str, Any] = {"tasks": json.dumps(op.tasks), "now": now, "stale": op.stale}
    for queue, lane, limit in cursor.execute(SQL["lanes"]).fetchall():
        room = op.limit - len(messages)
        if room <= 0:
            break
        if limit is not None:
            (out,) = cursor.execute(SQL["out_of_queue"], {"queue": queue}).fetchone()
            room = max(min(room, limit - out), 0)
        where = place | {"queue": queue, "lane": lane, "limit": room}
        for row in cursor.execute(SQL["fresh"], where).fetchall():
            message = CarrierMessage._make(row)
            cursor.execute(SQL["hand"], {"run_id": message.run_id})
            cursor.execute(SQL["note"], place | {"run_id": message.run_id, "task": message.task})
            messages.append(message)
    return HandedOver(messages, worn)


def postpone_hand_over(cursor: sqlite3.Cursor, op: PostponeHandOver, now: int) -> int:
    """Hand runs over again a little later."""
    return sum(
        cursor.execute(SQL["unsent"], {"run_id": run_id, "after": op.after, "now": now}).rowcount
        for run_id in op.run_ids
    )


def reroute(cursor: sqlite3.Cursor, op: RerouteRuns, now: int) -> int:
    """Move ready runs to where their tasks run now."""
    del now
    agreed = agreed_lanes(cursor.execute(SQL["seen_to"]).fetchall())
    present = {task for (task,) in cursor.execute(SQL["carried_tasks"]).fetchall()}
    strayed = {task: lane for task, lane in agreed.ours.items() if task in present}
    return _bring_back(cursor, strayed, op.limit) + _send_away(cursor, agreed.carried, op.limit)


def _bring_back(cursor: sqlite3.Cursor, lanes: dict[str, str], limit: int) -> int:
    moved = 0
    for task, lane in lanes.items():
        place = {"task": task, "limit": limit - moved}
        for (run_id,) in cursor.execute(SQL["bring_back"], place).fetchall():
            moved += cursor.execute(SQL["move"], {"run_id": run_id, "lane": lane}).rowcount
            cursor.execute(SQL["forget"], {"run_id": run_id})
    return moved


def _send_away(cursor: sqlite3.Cursor, lanes: dict[str, str], limit: int) -> int:
    moved = 0
    heads = cursor.execute(SQL["own_lanes"]).fetchall() if lanes else []
    tasks = json.dumps(list(lanes))
    for queue, lane in heads:
        place = {"queue": queue, "lane": lane, "tasks": tasks, "limit": limit}
        for run_id, task in cursor.execute(SQL["send_away"], place).fetchall()[: limit - moved]:
            where = {"run_id": run_id, "lane": lanes[task]}
            moved += cursor.execute(SQL["move"], where).rowcount
    return moved


def _stale(cursor: sqlite3.Cursor, op: HandOver, now: int) -> HandedOver:
    found = HandedOver([], [])
    for task in op.tasks:
        place = {"task": task, "now": now, "limit": op.limit - len(found.messages)}
        rows = cursor.execute(SQL["stale"], place).fetchall()
        for run_id, claim_number, queue, priority, times in rows:
            if claim_number is None:
                # It was claimed, or has ended.
                cursor.execute(SQL["forget"], {"run_id": run_id})
                continue
            if op.most is not None and times >= op.most:
                _give_up(cursor, run_id, times, now)
                found.undelivered.append(run_id)
                continue
            is_last = times + 1 == op.most
            after = op.longest if is_last else min(op.stale * 2 ** min(times, 30), op.longest)
            cursor.execute(SQL["note_again"], {"run_id": run_id, "now": now, "after": after})
            found.messages.append(CarrierMessage(run_id, claim_number, task, queue, priority))
    return found


def _give_up(cursor: sqlite3.Cursor, run_id: str, times: int, now: int) -> None:
    verdict, error = undelivered_verdict(times)
    transaction = transaction_at(cursor, now)
    end_queued(transaction, run_id, state=verdict.state, cause=str(verdict.cause), error=str(error))
    cursor.execute(SQL["forget"], {"run_id": run_id})
