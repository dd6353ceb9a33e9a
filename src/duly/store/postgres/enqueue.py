"""Accepts runs."""

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from duly.clock import monotonic
from duly.core.record import fast_constructor
from duly.errors import StoreRefused
from duly.store.hints import ReadyHints, encode, hints_of
from duly.store.ops.runs import Accepted, Enqueue, EnqueueAgain
from duly.store.postgres.arrays import flags, numbers, optional_numbers, optional_texts, texts
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.failures import is_fatal
from duly.store.postgres.reconnecting_connection import ReconnectingConnection
from duly.store.postgres.wakeup import PostgresHints
from duly.store.protocol import Dialogue, ExternalStatement, Row
from duly.store.queue_capacity import QueueCapacityCache
from duly.store.statements import load

SQL = load("postgres", "enqueue")

_accepted = fast_constructor(Accepted)
_Place = tuple[str, str]
"""A task and a key."""
_Holder = tuple[str, str]
"""The run that has a key, and the fingerprint of its arguments."""


def enqueue(
    line: ReconnectingConnection, ops: Sequence[Enqueue], hints: PostgresHints, said: ReadyHints
) -> tuple[list[Accepted], bool]:
    """Insert runs that have no key, in one statement that is its own transaction.

    The statement for a single run may also send its hint to other processes. Return the answers,
    and whether the hint was sent.
    """

    def write(session: PostgresSession, lost: bool) -> bool:  # noqa: FBT001 - as `Line.run` calls it
        missing = _unknown(session, ops) if lost or _may_be_known(ops) else ops
        if not missing:
            return False
        sql, columns = _insertion(missing, again=len(missing) < len(ops) or lost)
        if (
            sql == SQL["ready_one"]
            and hints.may_piggyback()
            and _insert_and_hint(session, columns, hints, said)
        ):
            return True
        began = monotonic()
        session.execute_alone(sql, columns)
        if sql == SQL["ready_one"]:
            hints.note_plain_insert(monotonic() - began)
        return False

    is_told = line.run(write)
    return [_accepted((op.run_id, True, False)) for op in ops], is_told


def _insert_and_hint(
    session: PostgresSession, columns: dict[str, Any], hints: PostgresHints, said: ReadyHints
) -> bool:
    """Insert a run and send its hint. Return whether both worked: a hint must never fail a run."""
    try:
        sent = {"channel": session.channel(), "payload": encode(said, hints.sender)}
        began = monotonic()
        session.execute_alone(SQL["ready_one_and_hint"], columns | sent)
    except psycopg.Error as error:
        if session.closed or is_fatal(error):
            raise
        hints.stop_piggybacking()
        return False
    hints.note_piggybacked(monotonic() - began)
    return True


def enqueue_keyed(session: PostgresSession, ops: Sequence[Enqueue]) -> list[Accepted]:
    """Insert the runs whose keys are free. For the others, return the run that holds the key.

    Call this inside a transaction. It waits for other transactions that are taking the same keys.
    """
    missing = _unknown(session, ops) if _may_be_known(ops) else ops
    takers: dict[_Place, Enqueue] = {}
    for op in missing:
        places = _places_of(op)
        taker = next((takers[place] for place in places if place in takers), op)
        for place in places:
            takers.setdefault(place, taker)
    holders = _take_keys(session, takers)
    answers = {op.run_id: _answer(op, takers, holders) for op in missing}
    new = [op for op in missing if answers[op.run_id].new]
    if new:
        insert(session, new)
    return [answers.get(op.run_id) or Accepted(op.run_id) for op in ops]


def insert(session: PostgresSession, ops: Sequence[Enqueue]) -> None:
    """Insert runs, inside a transaction."""
    session.execute(*_insertion(ops, again=True))


def check_database(found: Row, database: str) -> None:
    """Raise StoreRefused if a connection is to another database."""
    assert found is not None  # noqa: S101 - every such statement returns one row
    if found[0] != database:
        raise StoreRefused(
            f"this connection is to database {found[0]!r}, but runs are stored in {database!r}; "
            "roll its transaction back, and use one database for both or omit connection="
        )


def enqueue_on_connection(
    op: Enqueue, database: str, rooms: QueueCapacityCache, *, hint: bool
) -> Dialogue[Accepted]:
    """Accept a run on a caller's connection to the same database.

    With a hint, the caller's commit sends a notification, and such commits wait for one another.
    """
    if not rooms.fit([op]):
        yield from rooms.check([op])
    parameters: dict[str, Any] = op._asdict()
    key = parameters.pop("key")
    parameters |= {
        "key": key and key.text,
        "fingerprint": key and key.fingerprint,
        "ttl": key and key.ttl,
        "active_only": key and key.active_only,
        "other_names": " ".join(key.other_names) if key else "",
        "hint": encode(hints_of([op])) if hint else None,
    }
    found = yield ExternalStatement("postgresql", SQL["enqueue_in_callers_transaction"], parameters)
    check_database(found, database)
    assert found is not None  # noqa: S101 - the statement returns one row
    return Accepted(*found[1:4])


def _places_of(op: Enqueue) -> list[_Place]:
    """Return the places of a run's key: one for each name of its task, the own name first."""
    if op.key is None:
        return []
    return [(name, op.key.text) for name in (op.task, *op.key.other_names)]


def _take_keys(session: PostgresSession, takers: Mapping[_Place, Enqueue]) -> dict[str, _Holder]:
    """Take the keys that are free. For the others, return their holders, by the id of the op."""
    holders: dict[str, _Holder] = {}
    wanted = list({id(op): op for op in takers.values()}.values())
    while wanted:
        # All transactions take keys in this order, so they cannot deadlock.
        places = sorted((place, op) for op in wanted for place in _places_of(op))
        known = _read_keys(session, [place for place, _ in places])
        for op in wanted:
            found = [known[place] for place in _places_of(op) if place in known]
            if found:
                holders[op.run_id] = found[0]
        wanted = [op for op in wanted if op.run_id not in holders]
        places = [(place, op) for place, op in places if op.run_id not in holders]
        if wanted:
            taken = set(session.execute(SQL["take_key"], _key_columns(places)).fetchall())
            # A key that was not taken was taken by another transaction between the two statements.
            wanted = [op for op in wanted if not taken.issuperset(_places_of(op))]
        if wanted:
            ids = texts([op.run_id for op in wanted])
            session.execute(SQL["give_up_keys"], {"ids": ids})
    return holders


def _read_keys(session: PostgresSession, places: Sequence[_Place]) -> dict[_Place, _Holder]:
    """Return the id and fingerprint of the runs that hold these keys."""
    columns = {
        "tasks": texts([task for task, _ in places]),
        "keys": texts([key for _, key in places]),
    }
    rows = session.execute(SQL["read_key"], columns).fetchall()
    return {(task, key): (run_id, fingerprint) for task, key, run_id, fingerprint in rows}


def _key_columns(places: Sequence[tuple[_Place, Enqueue]]) -> dict[str, Any]:
    keyed = [(task, op, op.key) for (task, _), op in places if op.key is not None]
    return {
        "tasks": texts([task for task, _, _ in keyed]),
        "keys": texts([key.text for _, _, key in keyed]),
        "ids": texts([op.run_id for _, op, _ in keyed]),
        "fingerprints": texts([key.fingerprint for _, _, key in keyed]),
        "ttls": optional_numbers([key.ttl for _, _, key in keyed]),
        "active_only": flags(key.active_only for _, _, key in keyed),
    }


def _answer(
    op: Enqueue, takers: Mapping[_Place, Enqueue], holders: Mapping[str, _Holder]
) -> Accepted:
    if op.key is None:
        return Accepted(op.run_id)
    taker = takers[op.task, op.key.text]
    run_id, fingerprint = holders.get(taker.run_id) or _as_holder(taker)
    if run_id == op.run_id:
        return Accepted(op.run_id)
    return Accepted(run_id, new=False, conflict=op.key.differs_from(fingerprint))


def _as_holder(op: Enqueue) -> _Holder:
    return op.run_id, op.key.fingerprint if op.key is not None else ""


def _may_be_known(ops: Sequence[Enqueue]) -> bool:
    return EnqueueAgain in map(type, ops)


def _unknown(session: PostgresSession, ops: Sequence[Enqueue]) -> list[Enqueue]:
    rows = session.execute(SQL["known"], {"ids": texts([op.run_id for op in ops])}).fetchall()
    known = {run_id for (run_id,) in rows}
    return [op for op in ops if op.run_id not in known]


def _insertion(ops: Sequence[Enqueue], *, again: bool) -> tuple[str, dict[str, Any]]:
    """Return the statement that fits the ops, and its parameters."""
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
