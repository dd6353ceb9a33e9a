"""Accepting runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from duly.clock import monotonic
from duly.core.record import from_fields
from duly.errors import StoreRefused
from duly.store.ops import Accepted, Enqueue
from duly.store.postgres.columns import flags, numbers, optional_numbers, optional_texts, texts
from duly.store.postgres.connection import Session
from duly.store.postgres.failures import is_fatal
from duly.store.postgres.line import Line
from duly.store.postgres.wakeup import Hints
from duly.store.protocol import Dialogue, Row, Statement
from duly.store.rooms import QueueRooms
from duly.store.statements import load

SQL = load("duly.store.postgres", "enqueue")

_SLOW_SECONDS = 0.005
"""Commits that notify wait for one another, in all processes; one that took longer may have."""

_accepted = from_fields(Accepted)
_Place = tuple[str, str]
"""Task and key."""


class KeyHeld(Exception):
    """Some transaction that is still open is taking one of these keys; nothing was written."""

    def __init__(self, task: str, key: str) -> None:
        super().__init__(f"key {key!r} of task {task!r} is held")
        self.task = task
        self.key = key


def enqueue(line: Line, ops: Sequence[Enqueue], hints: Hints) -> tuple[list[Accepted], bool]:
    """Insert runs that have no key, in one statement that is its own transaction.

    For a lone run it may carry a hint to other processes. Return the answers, and whether it did.
    """

    def write(session: Session, lost: bool) -> bool:  # noqa: FBT001 - as `Line.run` calls it
        missing = _unknown(session, ops) if lost else ops
        if not missing:
            return False
        sql, columns = _insertion(missing, again=lost)
        if (
            sql == SQL["ready_one"]
            and hints.may_ride()
            and _insert_and_hint(session, columns, hints)
        ):
            return True
        session.execute_alone(sql, columns)
        return False

    is_told = line.run(write)
    return [_accepted((op.run_id, True, False)) for op in ops], is_told


def _insert_and_hint(session: Session, columns: dict[str, Any], hints: Hints) -> bool:
    """Insert a run and tell of it; say whether that went well. A hint must never fail a run."""
    began = monotonic()
    try:
        hint = {"channel": session.channel(), "sender": hints.sender}
        session.execute_alone(SQL["ready_one_and_hint"], columns | hint)
    except psycopg.Error as error:
        if session.closed or is_fatal(error):
            raise
        hints.stop_riding()
        return False
    if monotonic() - began > _SLOW_SECONDS:
        hints.stop_riding()
    return True


def enqueue_keyed(session: Session, ops: Sequence[Enqueue]) -> list[Accepted]:
    """Insert the runs whose keys are free; answer the others with the run that has the key.

    Runs inside a transaction. A key that somebody's open transaction is taking raises KeyHeld.
    """
    first: dict[_Place, Enqueue] = {}
    for op in ops:
        if op.key is not None:
            first.setdefault((op.task, op.key.text), op)
    holders = _take_keys(session, first)
    answers = [_answer(op, holders) for op in ops]
    new = [op for op, answer in zip(ops, answers, strict=True) if answer.new]
    if new:
        insert(session, new)
    return answers


def insert(session: Session, ops: Sequence[Enqueue]) -> None:
    """Insert runs, inside a transaction."""
    session.execute(*_insertion(ops, again=True))


def check_database(found: Row, database: str) -> None:
    """Refuse a connection to another database."""
    assert found is not None  # noqa: S101 - every such statement returns one row
    if found[0] != database:
        raise StoreRefused(
            f"this connection is to database {found[0]!r}, and runs are kept in {database!r}; roll "
            f"its transaction back, and keep both in one database or leave connection= out"
        )


def enqueue_elsewhere(op: Enqueue, database: str, rooms: QueueRooms) -> Dialogue[Accepted]:
    """Accept a run on a connection that is not ours, but to the same database."""
    if not rooms.fit([op]):
        yield from rooms.check([op])
    parameters: dict[str, Any] = op._asdict()
    key = parameters.pop("key")
    parameters |= {
        "key": key and key.text,
        "fingerprint": key and key.fingerprint,
        "ttl": key and key.ttl,
        "active_only": key and key.active_only,
    }
    found = yield Statement("postgresql", SQL["enqueue_in_callers_transaction"], parameters)
    check_database(found, database)
    assert found is not None  # noqa: S101 - as it says
    return Accepted(*found[1:])


class _Holders(NamedTuple):
    """Who has the keys of a batch: ops that took theirs just now, or runs from before."""

    new: dict[_Place, Enqueue]
    known: dict[_Place, tuple[str, str]]
    """Run id and fingerprint."""


def _take_keys(session: Session, first: dict[_Place, Enqueue]) -> _Holders:
    """Take those of the keys that are free, each for the first op that asks for it."""
    # Everybody locks in the same order, so that nobody waits in a circle.
    places = sorted(first)
    keyed = [(op, op.key) for op in (first[place] for place in places) if op.key is not None]
    columns = {
        "tasks": texts([task for task, _ in places]),
        "keys": texts([key for _, key in places]),
    }
    held = session.execute(SQL["lock_keys"], columns).fetchone()
    if held is not None:
        raise KeyHeld(*held)
    taken = session.execute(
        SQL["take_key"],
        columns
        | {
            "ids": texts([op.run_id for op, _ in keyed]),
            "fingerprints": texts([key.fingerprint for _, key in keyed]),
            "ttls": optional_numbers([key.ttl for _, key in keyed]),
            "active_only": flags(key.active_only for _, key in keyed),
        },
    ).fetchall()
    new = {(task, key): first[task, key] for task, key in taken}
    if len(new) == len(first):
        return _Holders(new, {})
    rows = session.execute(SQL["read_key"], columns).fetchall()
    return _Holders(new, {(task, key): (run_id, mark) for task, key, run_id, mark in rows})


def _answer(op: Enqueue, holders: _Holders) -> Accepted:
    if op.key is None:
        return Accepted(op.run_id)
    place = (op.task, op.key.text)
    taker = holders.new.get(place)
    if taker is op:
        return Accepted(op.run_id)
    if taker is not None and taker.key is not None:
        run_id, fingerprint = taker.run_id, taker.key.fingerprint
    else:
        run_id, fingerprint = holders.known[place]
    return Accepted(run_id, new=False, conflict=fingerprint != op.key.fingerprint)


def _unknown(session: Session, ops: Sequence[Enqueue]) -> list[Enqueue]:
    rows = session.execute(SQL["known"], {"ids": texts([op.run_id for op in ops])}).fetchall()
    known = {run_id for (run_id,) in rows}
    return [op for op in ops if op.run_id not in known]


def _insertion(ops: Sequence[Enqueue], *, again: bool) -> tuple[str, dict[str, Any]]:
    """Choose the statement that fits, and give it its columns."""
    ids, tasks, queues, lanes, priorities, arguments, delays, ats, expires, tags, keys = zip(
        *ops, strict=True
    )
    plain = not (again or any(delays) or any(at is not None for at in ats))
    if plain and not any(tags) and not any(keys):
        if len(ops) == 1:
            op = ops[0]
            row = {
                "id": op.run_id,
                "task": op.task,
                "queue": op.queue,
                "lane": op.lane,
                "priority": op.priority,
                "expires": op.expires,
                "arguments": op.arguments,
            }
            return SQL["ready_one"], row
        name = "ready"
    else:
        name = "accept"
    columns = {
        "ids": texts(ids),
        "tasks": texts(tasks),
        "queues": texts(queues),
        "lanes": texts(lanes),
        "priorities": numbers(priorities),
        "arguments": texts(arguments),
        "expires": optional_numbers(expires),
    }
    if name == "accept":
        columns |= {
            "delays": numbers(delays),
            "ats": optional_numbers(ats),
            "tags": optional_texts(tags),
            "keys": optional_texts([None if key is None else key.text for key in keys]),
        }
    return SQL[name], columns
