# ruff: noqa: S608 - the statements are built of our own words
"""A filled database, and the blocks that each statement of the store reads under any statistics."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from duly.core.concurrency_limits import limited_lane
from duly.store.postgres.prepared_statements import PreparedStatements
from duly.store.postgres.session_settings import HOT
from tests.store.conformance.verbs import LANE, OTHER_TASK, OTHER_WORKER, TASK, WORKER

BATCH = 20
"""The number of rows that each statement handles."""
FEW = 2 * BATCH
"""The number of rows of each kind that statements look for among many others."""
_WIDE = ("duly_runs", "duly_waiting", "duly_history")
LIMITED_LANE = limited_lane(LANE, TASK)
LONG_AGO = "timestamptz '2020-01-01'"


class Kind(NamedTuple):
    """Runs that are alike: the first hex digit of their ids, and their other properties."""

    digit: str
    columns: str = ""
    values: str = ""


QUEUED = Kind("1")
RUNNING = Kind(
    "2", ", state, worker_id, claimed_at, claim_number", f", 'running', '{WORKER}', now(), 1"
)
ORPHANED = Kind(
    "3", ", state, worker_id, claimed_at, claim_number", f", 'running', '{OTHER_WORKER}', now(), 1"
)
EXPIRED = Kind("4", ", expires_at", f", {LONG_AGO}")
DELAYED = Kind("5", ", due_at", ", now() + interval '1 day'")
DUE = Kind("6")
PARKED = Kind("7", ", parked", ", 'unregistered'")
FINISHED = Kind(
    "8",
    ", state, outcome, generation, claim_number, attempt, retries_used, crashes, tags, started_at,"
    " finished_at",
    """, 'succeeded', 'returned', 1, 1, 1, 0, 0, '{"name": "value"}',"""
    f" {LONG_AGO}, CASE WHEN n <= {FEW} THEN {LONG_AGO} ELSE now() END",
)
FAILED = Kind(
    "d",
    ", state, outcome, generation, claim_number, attempt, retries_used, crashes, started_at,"
    " finished_at",
    ", 'failed', 'raised', 1, 1, 1, 0, 0, now(), now()",
)
CARRIED = Kind("9")
HANDED = Kind("a")
LIMITED = Kind("b")
UNREGISTERED = Kind("c")
NEW = Kind("f")


def id_of(kind: Kind, number: int) -> str:
    """Return the id of one of these runs."""
    return f"{kind.digit}0000000-0000-7000-8000-{number:012x}"


def ids_of(kind: Kind, *, first: int = 1, count: int = BATCH) -> list[str]:
    """Return the ids of some of these runs, in order."""
    return [id_of(kind, number) for number in range(first, first + count)]


def fill(
    connection: psycopg.Connection[Any], count: int, *, beyond: int = 0, fillfactor: int = 100
) -> None:
    """Put rows into every table that grows, and a few of each kind that statements look for.

    `beyond` is the number of rows that exist already, including the few. A low `fillfactor` spreads
    narrow rows over more blocks.
    """
    if not beyond:
        # Only tests run ANALYZE, which would invalidate the plans that sessions keep.
        for table in _tables(connection):
            connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
            if table not in _WIDE:
                connection.execute(f"ALTER TABLE {table} SET (fillfactor = {fillfactor})")
    many = f"generate_series({beyond + 1}, {count})"
    _add_runs(connection, "duly_runs", QUEUED, many)
    _add_runs(connection, "duly_waiting", DELAYED, many)
    _add_runs(connection, "duly_history", FINISHED, many)
    _add_runs(connection, "duly_history", FAILED, many)
    for statement in _MANY:
        connection.execute(statement.replace(":many", many))
    if beyond:
        return
    few = f"generate_series(1, {FEW})"
    _add_runs(connection, "duly_runs", RUNNING, few, key="'key ' || n")
    _add_runs(connection, "duly_runs", ORPHANED, few)
    _add_runs(connection, "duly_runs", EXPIRED, few, lane="'other'")
    _add_runs(connection, "duly_runs", CARRIED, few, lane="'carried'")
    _add_runs(connection, "duly_runs", HANDED, few, lane="'handed'")
    _add_runs(connection, "duly_runs", LIMITED, few, lane=f"'{LIMITED_LANE}'")
    _add_runs(connection, "duly_runs", UNREGISTERED, few, task="'shop:gone'", due=LONG_AGO)
    _add_runs(connection, "duly_waiting", DUE, few)
    _add_runs(connection, "duly_waiting", PARKED, few, task=f"'{OTHER_TASK}'")
    for statement in _FEW:
        connection.execute(statement.replace(":few", few))


def vacuum(connection: psycopg.Connection[Any]) -> None:
    """Remove all dead rows and their index entries."""
    connection.execute(f"VACUUM (INDEX_CLEANUP ON) {', '.join(_tables(connection))}")


def _add_runs(
    connection: psycopg.Connection[Any],
    table: str,
    kind: Kind,
    numbers: str,
    *,
    task: str = f"'{TASK}'",
    lane: str = f"'{LANE}'",
    key: str = "NULL",
    due: str = "now()",
) -> None:
    columns, values = kind.columns, kind.values
    if "due_at" not in columns:
        columns, values = f"{columns}, due_at", f"{values}, {due}"
    connection.execute(
        f"INSERT INTO {table}"
        f" (id, task, queue, lane, priority, created_at, key, arguments{columns})"
        f" SELECT ('{kind.digit}0000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,"
        f" {task}, 'default', {lane}, 0, now(), {key}, repeat('x', 1000){values}"
        f" FROM {numbers} AS n"
    )


def _id(kind: Kind) -> str:
    return f"('{kind.digit}0000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid"


_MANY = (
    f"""INSERT INTO duly_keys (task, key, run_id, fingerprint, active_only)
        SELECT '{TASK}', 'key ' || n, {_id(RUNNING)}, '', true
          FROM :many AS n""",
    f"""INSERT INTO duly_attempts
        (run_id, claim_number, generation, attempt, outcome, finished_at)
        SELECT {_id(FINISHED)}, 1, 1, 1, 'raised', now() FROM :many AS n""",
    f"""INSERT INTO duly_tags (name, value, run_id)
        SELECT 'name', 'value', {_id(FINISHED)} FROM :many AS n""",
    f"""INSERT INTO duly_logs (run_id, claim_number, at, level, message)
        SELECT {_id(FINISHED)}, 1, now(), 'INFO', 'said' FROM :many AS n""",
    f"""INSERT INTO duly_steps (run_id, name, kind, done, awaited, claim_number, began_at)
        SELECT {_id(DELAYED)}, 'wait', 'wait', false, 'event ' || (n + 1000000), 1, now()
          FROM :many AS n""",
    """INSERT INTO duly_events (name, payload, sent_at)
        SELECT 'event ' || n, '1', CASE WHEN n <= 40 THEN timestamptz '2020-01-01' ELSE now() END
          FROM :many AS n""",
    """INSERT INTO duly_handed (run_id, task, times, stale_at)
        SELECT ('a0000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 'shop:send', 1,
               CASE WHEN n <= 40 THEN now() - interval '1 minute' ELSE now() + interval '1 day' END
          FROM :many AS n""",
    """INSERT INTO duly_schedules
        (name, source, place, task, queue, lane, priority, arguments, trigger, rules, state,
         look_at, failures_from, created_at, updated_at)
        SELECT 'schedule ' || n, 'code', '', 'shop:send', 'default', 'thread', 0, '', '', '',
               'active', now() + CASE WHEN n <= 40 THEN interval '0' ELSE interval '1 day' END,
               now() - interval '1 day', now(), now()
          FROM :many AS n""",
    f"""INSERT INTO duly_firings
        (schedule, instant, last_instant, instants, version, outcome, run_id, fired_at)
        SELECT 'schedule ' || n, now(), now(), 1, 1, 'run', {_id(FINISHED)},
               CASE WHEN n <= 40 THEN timestamptz '2020-01-01' ELSE now() END
          FROM :many AS n""",
    """INSERT INTO duly_wakeups (event) SELECT 'event ' || n FROM :many AS n""",
    """INSERT INTO duly_acts (at, actor, act, subject, reason)
        SELECT CASE WHEN n <= 40 THEN timestamptz '2020-01-01' ELSE now() END, '', '', '', ''
          FROM :many AS n""",
)
_FEW = (
    f"""INSERT INTO duly_workers
        (id, state, host, pid, started_at, seen_at, lease_seconds, queues, tasks)
        VALUES ('{WORKER}', 'live', 'here', 1, now(), now(), 30, '[]',
                '["{TASK}", "{OTHER_TASK}"]')""",
    f"""INSERT INTO duly_keys (task, key, run_id, fingerprint, active_only, expires_at)
        SELECT '{TASK}', 'old ' || n, {_id(FINISHED)}, '', true, {LONG_AGO}
          FROM :few AS n""",
    f"""INSERT INTO duly_steps (run_id, name, kind, done, awaited, claim_number, began_at)
        SELECT {_id(RUNNING)}, 'wait', 'wait', false, 'event ' || n, 1, now()
          FROM :few AS n""",
    f"""INSERT INTO duly_steps (run_id, name, kind, done, awaited, claim_number, began_at)
        SELECT {_id(RUNNING)}, 'gather', 'gather', false, '["{id_of(FINISHED, 1)}"]', 1, now()
          FROM :few AS n""",
)


# -- statistics --


def forge(connection: psycopg.Connection[Any], *, pages: str, rows: int) -> None:
    """Set these statistics for all tables and indexes, until the transaction is rolled back.

    `pages` is an SQL expression.
    """
    where = "relkind IN ('r', 'i') AND relname LIKE 'duly@_%' ESCAPE '@'"
    if connection.info.server_version < 180000:
        connection.execute(
            f"UPDATE pg_class SET relpages = {pages}, reltuples = {rows} WHERE {where}"
        )
        return
    connection.execute(
        "SELECT pg_restore_relation_stats('schemaname', relnamespace::regnamespace::text,"
        f" 'relname', relname::text, 'relpages', ({pages})::integer, 'reltuples', {rows}::real)"
        f" FROM pg_class WHERE {where}"
    )


PAGES = "pg_relation_size(oid) / 8192"


# -- the reads of statements --


class Server:
    """A session that prepares statements as the store does and counts the blocks they touch."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection
        self._prepared = PreparedStatements(connection)
        self._settings: Mapping[str, str] = {}

    def use(self, settings: Mapping[str, str]) -> None:
        """Use these settings, and the server's for all others, until the transaction ends."""
        if settings != self._settings:
            for name in HOT:
                default = self._prepared.run(_DEFAULT, {"name": name})[0][0]
                value = settings.get(name, default)
                self._prepared.run(_SET, {"name": name, "value": value})
            self._settings = settings

    @contextmanager
    def undone(self) -> Iterator[None]:
        """Undo the statements of a block. The driver's own rollback drops all plans."""
        self._send("BEGIN")
        # A statement that reads too much is cancelled, so the test fails in bounded time.
        self._send("SET LOCAL statement_timeout = '5s'")
        self._settings = {}
        try:
            yield
        finally:
            self._send("ROLLBACK")

    def blocks(self, sql: str, place: Mapping[str, Any]) -> int:
        """Return how many blocks of our tables and indexes a statement touches, and undo it."""
        self._send("SAVEPOINT before")
        before = self._touched()
        self._prepared.run(sql, place)
        after = self._touched()
        self._send("ROLLBACK TO SAVEPOINT before")
        return after - before

    def plan(self, sql: str, place: Mapping[str, Any]) -> str:
        """Return the plan of a statement, for the message of a failed test."""
        self._send("SAVEPOINT before")
        rows = self._prepared.run("EXPLAIN (COSTS OFF) " + sql, place)
        self._send("ROLLBACK TO SAVEPOINT before")
        return "\n".join(line for (line,) in rows)

    def _touched(self) -> int:
        ((count,),) = self._prepared.run(_TOUCHED, {})
        return int(count)

    def _send(self, sql: str) -> None:
        result = self.connection.pgconn.exec_(sql.encode())
        assert not result.error_message, result.error_message


_DEFAULT = "SELECT reset_val FROM pg_settings WHERE name = %(name)s"
_SET = "SELECT set_config(%(name)s, %(value)s, true)"
_TOUCHED = """
SELECT sum(pg_stat_get_xact_blocks_fetched(oid))::bigint
  FROM pg_class
 WHERE relkind IN ('r', 'i') AND relname LIKE 'duly@_%%' ESCAPE '@'
"""


def smallest(connection: psycopg.Connection[Any]) -> int:
    """Return the number of blocks of the smallest table that was filled."""
    found = connection.execute(
        "SELECT min(pg_relation_size(oid) / 8192) FROM pg_class"
        " WHERE relkind = 'r' AND relname = ANY (%s)",
        [[*_WIDE, *(statement.split()[2] for statement in _MANY)]],
    )
    return int(found.fetchall()[0][0])


def _tables(connection: psycopg.Connection[Any]) -> list[str]:
    found = connection.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'duly@_%' ESCAPE '@'"
    )
    return [name for (name,) in found.fetchall()]
