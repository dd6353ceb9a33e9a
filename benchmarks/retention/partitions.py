"""Measures a copy of the history that is partitioned by ranges of ids, against the plain table.

In each round both tables get the same work, one after the other. The copy has no default partition:
PostgreSQL refuses DETACH CONCURRENTLY while a table has one.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
from psycopg import errors

from benchmarks.report import Figure, at_most
from benchmarks.retention.load import latencies, repeated
from benchmarks.retention.stores import FilledPostgres
from benchmarks.tasks import noop
from duly.clock import SystemClock, new_id
from duly.limits import TICK_BATCH

DAYS, DAY = 14, 86_400_000_000
ENDED_AT_ONCE = 500
PAGE_ROWS = 50
TIMES = 5
PLAIN, PARTS = "duly_history", "measured_parts"
_LOWEST = "00000000-0000-0000-0000-000000000000"
LOCK_TIMEOUT = "SET lock_timeout = '1s'"

_CREATE = """
    CREATE TABLE measured_parts (LIKE duly_history INCLUDING CONSTRAINTS) PARTITION BY RANGE (id)
"""
_COPY = "INSERT INTO measured_parts SELECT * FROM duly_history"
_SOME_IDS = "SELECT id::text FROM duly_history TABLESAMPLE SYSTEM (1) LIMIT 5000"
_COUNT = "SELECT count(*) FROM measured_parts_1"
_COLUMNS = """id, task, queue, lane, state, outcome, priority, generation, claim_number, attempt,
    retries_used, crashes, created_at, due_at, worker_id, started_at, finished_at, arguments"""
_INSERT = f"""
    INSERT INTO {{table}} ({_COLUMNS})
    SELECT id, '{noop.name}', 'default', 'loop', 'succeeded', 'returned', 0, 1, 1, 1, 0, 0,
           duly_now(), duly_now(), 'a worker', duly_now(), duly_now(), '[[],{{{{"number":1}}}}]'
      FROM unnest(%(ids)s::uuid[]) AS id
"""  # noqa: S608 - constants of this module
_BY_ID = "SELECT * FROM {table} WHERE id = %(id)s"
_BY_IDS = "SELECT id, state FROM {table} WHERE id = ANY (%(ids)s::uuid[])"
_BY_KEY = """
    SELECT * FROM {table}
     WHERE id = (SELECT run_id FROM duly_keys WHERE task = %(task)s AND key = %(key)s)
"""
_PAGE = "SELECT * FROM {table} WHERE id < %(id)s ORDER BY id DESC LIMIT %(rows)s"
_DEAD = """
    SELECT * FROM {table} WHERE state NOT IN ('succeeded', 'cancelled') AND id < %(id)s
     ORDER BY id DESC LIMIT %(rows)s
"""
_OLDEST = """
    SELECT id FROM {table}
     WHERE finished_at < duly_now() AND state NOT IN ('failed', 'interrupted')
       AND kept_until IS NULL
     ORDER BY finished_at LIMIT %(limit)s
"""


def measure(filled: FilledPostgres, *, rounds: int, seconds: float) -> Iterator[Figure]:
    """Compare both tables, then let partitions leave, also while the database is dumped."""
    with closing(psycopg.connect(filled.url, autocommit=True)) as connection:
        _copy(connection)
        yield from _reads(connection, rounds * 10)
        yield from _leaving(filled, connection, seconds)


def measure_inserts(filled: FilledPostgres, rounds: int, when: str) -> Figure:
    """Compare the INSERT of a settle. The plain table has the space of deleted rows."""

    def ended() -> dict[str, Any]:
        return {"ids": [new_id() for _ in range(ENDED_AT_ONCE)]}

    with closing(psycopg.connect(filled.url, autocommit=True)) as connection:
        name = f"insert {ENDED_AT_ONCE} ended runs {when}"
        return _compared(connection, name, _INSERT, ended, rounds * 20)


def _copy(connection: psycopg.Connection[Any]) -> None:
    """Copy all rows to a partition for each day, and build the same indexes there."""
    connection.execute(_CREATE)
    now = SystemClock().now()
    for number in range(DAYS + 2):
        since, until = (_lowest_id(now + (at - DAYS) * DAY) for at in (number, number + 1))
        since = _LOWEST if number == 0 else since
        connection.execute(
            f"CREATE TABLE {PARTS}_{number} PARTITION OF {PARTS}"
            f" FOR VALUES FROM ('{since}') TO ('{until}')"
        )
    connection.execute(_COPY)
    found = connection.execute("SELECT indexdef FROM pg_indexes WHERE tablename = 'duly_history'")
    for (definition,) in found.fetchall():
        connection.execute(definition.replace("duly_history", PARTS).encode())
    connection.execute(f"VACUUM (FREEZE, ANALYZE) {PARTS}")


def _lowest_id(at: int) -> str:
    """Return the lowest UUIDv7 of a time."""
    text = f"{at // 1000:012x}"
    return f"{text[:8]}-{text[8:]}-7000-8000-000000000000"


def _reads(connection: psycopg.Connection[Any], rounds: int) -> Iterator[Figure]:
    draw = random.Random(rounds)
    ids = [found for (found,) in connection.execute(_SOME_IDS)]
    keys = [found for (found,) in connection.execute("SELECT key FROM duly_keys LIMIT 1000")]

    def parameters() -> dict[str, Any]:
        return {
            "id": draw.choice(ids),
            "ids": sorted(draw.sample(ids, min(len(ids), ENDED_AT_ONCE))),
            "key": draw.choice(keys),
            "task": noop.name,
            "rows": PAGE_ROWS,
            "limit": TICK_BATCH,
        }

    for name, statement in (
        ("read one run by its id", _BY_ID),
        (f"read {ENDED_AT_ONCE} runs by their ids", _BY_IDS),
        ("read one run by its key", _BY_KEY),
        (f"a page of {PAGE_ROWS} runs", _PAGE),
        (f"a page of {PAGE_ROWS} dead letters", _DEAD),
        (f"find the {TICK_BATCH} oldest ends", _OLDEST),
    ):
        yield _compared(connection, name, statement, parameters, rounds)


def _compared(
    connection: psycopg.Connection[Any],
    name: str,
    statement: str,
    parameters: Callable[[], dict[str, Any]],
    rounds: int,
) -> Figure:
    """Execute a statement on both tables in turns. Each is the first of the two as often."""
    found: dict[str, list[float]] = {PLAIN: [], PARTS: []}
    for number in range(rounds):
        for table in sorted(found, reverse=number % 2 == 0):
            sql = statement.format(table=table).encode()
            took = 0.0
            for _ in range(TIMES):
                values = parameters()
                began = time.perf_counter()
                connection.execute(sql, values, prepare=True)
                took += time.perf_counter() - began
            found[table].append(1e3 * took / TIMES)
    note = "bare: the plain table"
    return Figure(f"partitions: {name}", "postgres", "ms", found[PARTS], found[PLAIN], note=note)


def _leaving(
    filled: FilledPostgres, connection: psycopg.Connection[Any], seconds: float
) -> Iterator[Figure]:
    """Detach and drop the oldest partitions under inserts: alone, and during a dump."""
    sql = _INSERT.format(table=PARTS).encode()
    with closing(psycopg.connect(filled.url, autocommit=True)) as writer:

        def insert() -> float:
            began = time.perf_counter()
            writer.execute(sql, {"ids": [new_id() for _ in range(10)]})
            return time.perf_counter() - began

        connection.execute(LOCK_TIMEOUT)
        rows = connection.execute(_COUNT).fetchone()
        assert rows is not None
        with repeated(insert) as waits:
            time.sleep(seconds / 2)
            began = time.perf_counter()
            connection.execute(f"ALTER TABLE {PARTS} DETACH PARTITION {PARTS}_1 CONCURRENTLY")
            connection.execute(f"DROP TABLE {PARTS}_1")
            took = time.perf_counter() - began
            time.sleep(seconds / 2)
        note = f"{rows[0]:,} runs"
        yield Figure("partitions: detach and drop one", "postgres", "s", [took], note=note)
        yield _longest("while one leaves", waits)
        with filled.dump(), repeated(insert) as waits:
            refusal = _refusal(
                connection, f"ALTER TABLE {PARTS} DETACH PARTITION {PARTS}_2 CONCURRENTLY"
            )
            finalized = _refusal(
                connection, f"ALTER TABLE {PARTS} DETACH PARTITION {PARTS}_2 FINALIZE"
            )
        yield _longest("while one leaves, with pg_dump", waits, f"{refusal}; then {finalized}")
        _refusal(connection, f"ALTER TABLE {PARTS} DETACH PARTITION {PARTS}_2 FINALIZE")
        connection.execute(f"CREATE TABLE {PARTS}_default PARTITION OF {PARTS} DEFAULT")
        refusal = _refusal(
            connection, f"ALTER TABLE {PARTS} DETACH PARTITION {PARTS}_3 CONCURRENTLY"
        )
        with filled.dump(), repeated(insert) as waits:
            time.sleep(seconds / 4)
            plain = _refusal(connection, f"ALTER TABLE {PARTS} DETACH PARTITION {PARTS}_3")
        note = f"concurrently: {refusal}; plain: {plain}"
        yield _longest("with a default partition and pg_dump", waits, note)


def _refusal(connection: psycopg.Connection[Any], sql: str) -> str:
    """Return the error of a statement, or that it succeeded."""
    try:
        connection.execute(sql.encode())
    except errors.Error as error:
        return str(error).splitlines()[0]
    return "done"


def _longest(when: str, waits: list[float], note: str = "") -> Figure:
    longest = latencies(waits).longest
    return Figure(
        f"partitions: longest insert {when}", "postgres", "ms", [longest], (), (at_most(1e3),), note
    )
