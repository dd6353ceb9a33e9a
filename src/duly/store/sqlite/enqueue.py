"""Accepts runs."""

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from duly.core.record import fast_constructor
from duly.errors import StoreBusy, StoreRefused
from duly.store.ops.op import AnyOp
from duly.store.ops.runs import Accepted, Enqueue, EnqueueAgain, Key
from duly.store.protocol import Dialogue, ExternalStatement
from duly.store.queue_capacity import QueueCapacityCache
from duly.store.sqlite.multirow import execute_rows
from duly.store.statements import load

SQL = load("sqlite", "enqueue")

_accepted = fast_constructor(Accepted)


def enqueue(cursor: sqlite3.Cursor, ops: Sequence[Enqueue], now: int) -> list[Accepted]:
    """Insert runs whose keys are free. For the others, return the run that has the key."""
    ready: list[tuple[object, ...]] = []
    later: list[tuple[object, ...]] = []
    tags: list[tuple[str, str, str]] = []
    answers: list[Accepted] = []
    for op in ops:
        if type(op) is EnqueueAgain and _exists(cursor, op.run_id):
            answers.append(Accepted(op.run_id))
            continue
        if op.key is not None:
            answer = _take_key(cursor, op, op.key, now)
            answers.append(answer)
            if not answer.new:
                continue
        else:
            answers.append(_accepted((op.run_id, True, False)))
        due_at = now + op.delay if op.at is None else max(op.at, 0)
        row = (
            op.run_id,
            op.task,
            op.queue,
            op.lane,
            op.priority,
            now,
            due_at,
            op.arguments,
            0 if op.expires is None else now + op.expires,
            "" if op.key is None else op.key.text,
            op.tags or "",
        )
        (ready if due_at <= now else later).append(row)
        if op.tags is not None:
            tags += [(name, value, op.run_id) for name, value in json.loads(op.tags).items()]
    for name, rows in (("ready", ready), ("later", later), ("tags", tags)):
        if rows:
            execute_rows(cursor, SQL, name, rows)
    if ready or later:
        cursor.execute(SQL["count"], {"accepted": len(ready) + len(later)})
    return answers


def _exists(cursor: sqlite3.Cursor, run_id: str) -> bool:
    return cursor.execute(SQL["exists"], {"run_id": run_id}).fetchone() is not None


def is_plain(op: AnyOp) -> bool:
    """Return whether an op is a run that is due at once, never expires, and has no key or tags."""
    return type(op) is Enqueue and op[6:] == _PLAIN


_PLAIN = (0, None, None, None, None)
"""The delay, at, expires, tags and key of a plain run."""


def enqueue_one(connection: sqlite3.Connection, op: Any, now: int) -> Accepted:  # noqa: ANN401
    """Insert a plain run."""
    connection.execute(SQL["plain"], (*op[:5], now, op[5]))
    return _accepted((op[0], True, False))


def check_place(path: Path) -> Dialogue[None]:
    """Refuse a connection to another file."""
    found = yield ExternalStatement("sqlite", SQL["place"], {})
    file = found[2] if found else ""
    if not file or not path.samefile(file):
        raise StoreRefused(
            f"this connection is to {file or 'a database in memory'}, but runs are stored in "
            f"{path}; use one file for both, or omit connection="
        )


def enqueue_on_connection(
    op: Enqueue, path: Path, now: int, rooms: QueueCapacityCache
) -> Dialogue[Accepted]:
    """Accept a run on the caller's connection."""
    yield from check_place(path)
    if not rooms.fit([op]):
        yield ExternalStatement("sqlite", SQL["begin_to_write"], {})
        yield from rooms.check([op])
    key = op.key
    row = {
        "run_id": op.run_id,
        "task": op.task,
        "queue": op.queue,
        "lane": op.lane,
        "priority": op.priority,
        "now": now,
        "due_at": now + op.delay if op.at is None else max(op.at, 0),
        "expires_at": None if op.expires is None else now + op.expires,
        "arguments": op.arguments,
        "tags": op.tags,
        "key": key and key.text,
        "fingerprint": key and key.fingerprint,
        "ttl": key and key.ttl,
        "active_only": key and int(key.active_only),
        "other_names": json.dumps(key.other_names if key else ()),
    }
    yield ExternalStatement("sqlite", SQL["enqueue_in_callers_transaction"], row)
    if key is None:
        return Accepted(op.run_id)
    # On a connection that commits every statement, the run may already have ended, and another run
    # may have its key.
    if (yield ExternalStatement("sqlite", SQL["exists"], {"run_id": op.run_id})) is not None:
        return Accepted(op.run_id)
    holder = yield ExternalStatement("sqlite", SQL["held_by_name"], _names(op, key, now))
    holder = holder or (
        yield ExternalStatement("sqlite", SQL["read_key"], {"task": op.task, "key": key.text})
    )
    if holder is None:
        raise StoreBusy(f"key {key.text!r} was released during this call; enqueue again")
    run_id, fingerprint = holder
    return Accepted(run_id, new=False, conflict=key.differs_from(fingerprint))


def _names(op: Enqueue, key: Key, now: int) -> dict[str, str | int]:
    names = json.dumps([op.task, *key.other_names])
    return {"names": names, "task": op.task, "key": key.text, "now": now}


def _take_key(cursor: sqlite3.Cursor, op: Enqueue, key: Key, now: int) -> Accepted:
    place = {"task": op.task, "key": key.text}
    if key.other_names:
        held = cursor.execute(SQL["held_by_name"], _names(op, key, now)).fetchone()
        if held is not None:
            return Accepted(held[0], new=False, conflict=key.differs_from(held[1]))
    taken = cursor.execute(
        SQL["take_key"],
        place
        | {
            "run_id": op.run_id,
            "fingerprint": key.fingerprint,
            "ttl": key.ttl,
            "active_only": key.active_only,
            "now": now,
        },
    )
    if taken.rowcount == 1:
        return Accepted(op.run_id)
    run_id, fingerprint = cursor.execute(SQL["read_key"], place).fetchone()
    return Accepted(run_id, new=False, conflict=key.differs_from(fingerprint))
