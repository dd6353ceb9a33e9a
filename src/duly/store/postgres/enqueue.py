"""Accepting runs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import psycopg

from duly.clock import monotonic
from duly.core.record import from_fields
from duly.errors import StoreRefused
from duly.store.hints import ReadyHints, encode, hints_of
from duly.store.ops import Accepted, Enqueue, EnqueueAgain, Key
from duly.store.postgres.columns import flags, numbers, optional_numbers, optional_texts, texts
from duly.store.postgres.connection import Session
from duly.store.postgres.failures import is_fatal
from duly.store.postgres.line import Line
from duly.store.postgres.wakeup import Hints
from duly.store.protocol import Dialogue, Row, Statement
from duly.store.rooms import QueueRooms
from duly.store.statements import load

SQL = load("duly.store.postgres", "enqueue")

_accepted = from_fields(Accepted)
_Place = tuple[str, str]
"""Task and key."""


def enqueue(
    line: Line, ops: Sequence[Enqueue], hints: Hints, said: ReadyHints
) -> tuple[list[Accepted], bool]:
    """Insert runs that have no key, in one statement that is its own transaction.

    For a lone run it may carry its hint to other processes. Return the answers, and whether it did.
    """

    def write(session: Session, lost: bool) -> bool:  # noqa: FBT001 - as `Line.run` calls it
        missing = _unknown(session, ops) if lost or _may_be_known(ops) else ops
        if not missing:
            return False
        sql, columns = _insertion(missing, again=len(missing) < len(ops) or lost)
        if (
            sql == SQL["ready_one"]
            and hints.may_ride()
            and _insert_and_hint(session, columns, hints, said)
        ):
            return True
        began = monotonic()
        session.execute_alone(sql, columns)
        if sql == SQL["ready_one"]:
            hints.went_alone(monotonic() - began)
        return False

    is_told = line.run(write)
    return [_accepted((op.run_id, True, False)) for op in ops], is_told


def _insert_and_hint(
    session: Session, columns: dict[str, Any], hints: Hints, said: ReadyHints
) -> bool:
    """Insert a run and tell of it; say whether that went well. A hint must never fail a run."""
    try:
        sent = {"channel": session.channel(), "payload": encode(said, hints.sender)}
        began = monotonic()
        session.execute_alone(SQL["ready_one_and_hint"], columns | sent)
    except psycopg.Error as error:
        if session.closed or is_fatal(error):
            raise
        hints.stop_riding()
        return False
    hints.rode(monotonic() - began)
    return True


def enqueue_keyed(session: Session, ops: Sequence[Enqueue]) -> list[Accepted]:
    """Insert the runs whose keys are free; answer the others with the run that has the key.

    Runs inside a transaction, and waits for other transactions that are taking one of these keys.
    """
    missing = _unknown(session, ops) if _may_be_known(ops) else ops
    first: dict[_Place, Enqueue] = {}
    for op in missing:
        if op.key is not None:
            first.setdefault((op.task, op.key.text), op)
    holders = _take_keys(session, first)
    answers = {op.run_id: _answer(op, holders) for op in missing}
    new = [op for op in missing if answers[op.run_id].new]
    if new:
        insert(session, new)
    return [answers.get(op.run_id) or Accepted(op.run_id) for op in ops]


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


def enqueue_elsewhere(
    op: Enqueue, database: str, rooms: QueueRooms, *, hint: bool
) -> Dialogue[Accepted]:
    """Accept a run on a connection that is not ours, but to the same database.

    With a hint its commit notifies, and commits that do wait for one another.
    """
    if not rooms.fit([op]):
        yield from rooms.check([op])
    if op.key is not None and op.key.other_names:
        held = yield from _held_by_name(op, op.key, database)
        if held is not None:
            return held
    parameters: dict[str, Any] = op._asdict()
    key = parameters.pop("key")
    parameters |= {
        "key": key and key.text,
        "fingerprint": key and key.fingerprint,
        "ttl": key and key.ttl,
        "active_only": key and key.active_only,
        "hint": encode(hints_of([op])) if hint else None,
    }
    found = yield Statement("postgresql", SQL["enqueue_in_callers_transaction"], parameters)
    check_database(found, database)
    assert found is not None  # noqa: S101 - as it says
    return Accepted(*found[1:4])


def _held_by_name(op: Enqueue, key: Key, database: str) -> Dialogue[Accepted | None]:
    """Return the run that has the key under any name of the task; else keep others from taking it.

    A later statement of a transaction sees what was committed while an earlier one waited.
    """
    place = {"names": _sorted_names(op, key), "task": op.task, "key": key.text}
    yield Statement("postgresql", SQL["lock_name"], place)
    found = yield Statement("postgresql", SQL["held_by_name"], place)
    check_database(found, database)
    assert found is not None  # noqa: S101 - as it says
    _, run_id, fingerprint = found
    if run_id is None:
        return None
    return Accepted(run_id, new=False, conflict=key.differs_from(fingerprint))


def _sorted_names(op: Enqueue, key: Key) -> str:
    return " ".join(sorted((op.task, *key.other_names)))


class _Holders(NamedTuple):
    """Who has the keys of a batch: ops that took theirs just now, or runs from before."""

    new: dict[_Place, Enqueue]
    known: dict[_Place, tuple[str, str]]
    """Run id and fingerprint."""


def _take_keys(session: Session, first: dict[_Place, Enqueue]) -> _Holders:
    """Take those of the keys that are free, each for the first op that asks for it."""
    holders = _Holders({}, {})
    # All transactions take keys in this order, so no two of them wait for each other.
    missing = sorted(first)
    names = _lock_names(session, missing, first)
    while missing:
        holders.known.update(_read_keys(session, missing))
        missing = [place for place in missing if place not in holders.known]
        elsewhere = {other: place for place in missing for other in names.get(place, ())}
        for place, holder in _read_keys(session, list(elsewhere)).items():
            holders.known[elsewhere[place]] = holder
        missing = [place for place in missing if place not in holders.known]
        if missing:
            taken = session.execute(SQL["take_key"], _key_columns(missing, first)).fetchall()
            holders.new.update({(task, key): first[task, key] for task, key in taken})
            # A key that is left was taken between the two statements.
            missing = [place for place in missing if place not in holders.new]
    return holders


def _read_keys(session: Session, places: Sequence[_Place]) -> dict[_Place, tuple[str, str]]:
    """Return the id and fingerprint of the runs that have these keys."""
    if not places:
        return {}
    columns = {
        "tasks": texts([task for task, _ in places]),
        "keys": texts([key for _, key in places]),
    }
    rows = session.execute(SQL["read_key"], columns).fetchall()
    return {(task, key): (run_id, fingerprint) for task, key, run_id, fingerprint in rows}


def _lock_names(
    session: Session, places: Sequence[_Place], first: dict[_Place, Enqueue]
) -> dict[_Place, list[_Place]]:
    """Keep others from taking keys of tasks that have aliases, under any of their names.

    Return where else each of these keys can be.
    """
    found, locks = {}, []
    for place in places:
        op = first[place]
        if op.key is not None and op.key.other_names:
            found[place] = [(name, op.key.text) for name in op.key.other_names]
            locks.append((_sorted_names(op, op.key), op.key.text))
    if locks:
        locks.sort()
        columns = {"names": texts([n for n, _ in locks]), "keys": texts([k for _, k in locks])}
        session.execute(SQL["lock_names"], columns)
    return found


def _key_columns(places: Sequence[_Place], first: dict[_Place, Enqueue]) -> dict[str, Any]:
    keyed = [(op, op.key) for op in (first[place] for place in places) if op.key is not None]
    return {
        "tasks": texts([op.task for op, _ in keyed]),
        "keys": texts([key.text for _, key in keyed]),
        "ids": texts([op.run_id for op, _ in keyed]),
        "fingerprints": texts([key.fingerprint for _, key in keyed]),
        "ttls": optional_numbers([key.ttl for _, key in keyed]),
        "active_only": flags(key.active_only for _, key in keyed),
    }


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
    return Accepted(run_id, new=False, conflict=op.key.differs_from(fingerprint))


def _may_be_known(ops: Sequence[Enqueue]) -> bool:
    return any(type(op) is EnqueueAgain for op in ops)


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
