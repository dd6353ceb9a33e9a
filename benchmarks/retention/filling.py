"""Fills a store with ended runs and the rows that belong to them.

The runs ended over a span of twice the usual retention, and half of them are too old. One run
in ten has a key, a tag and two log lines. One in twenty has three steps, one in fifty a failed
attempt, and one in a hundred is a dead letter.
"""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.tasks import noop
from duly.clock import MICROSECONDS, SystemClock
from duly.limits import RETENTION_SECONDS

SPAN_SECONDS = 2 * RETENTION_SECONDS

_POSTGRES_RUNS = """
    CREATE TEMP VIEW measured_runs AS
    SELECT n, duly_time(ended) AS ended_at,
           (lpad(to_hex(ended / 1000), 12, '0') || '70008000'
            || lpad(to_hex(n), 12, '0'))::uuid AS id
      FROM (SELECT n, {first} + n * {step} AS ended FROM generate_series(1, {count}::bigint) AS n)
           AS numbered
"""
_SQLITE_RUNS = """
    CREATE TEMP VIEW measured_runs AS
    WITH RECURSIVE series(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM series WHERE n < {count})
    SELECT n, {first} + n * {step} AS ended_at,
           printf('%08x-%04x-7000-8000-%012x', ({first} + n * {step}) / 1000 >> 16,
                  ({first} + n * {step}) / 1000 & 65535, n) AS id
      FROM series
"""

_SAME_ON_BOTH = [
    """
    INSERT INTO duly_history
        (id, task, queue, lane, state, outcome, priority, generation, claim_number, attempt,
         retries_used, crashes, created_at, due_at, worker_id, started_at, finished_at, key, tags,
         arguments, result, error, traceback, fingerprint)
    SELECT id, '{task}', 'default', 'loop',
           CASE WHEN n % 100 = 0 THEN 'failed' ELSE 'succeeded' END,
           CASE WHEN n % 100 = 0 THEN 'raised' ELSE 'returned' END, 0, 1, 1, 1, 0, 0, ended_at,
           ended_at, '01900000-0000-7000-8000-00000000aaaa', ended_at, ended_at,
           CASE WHEN n % 10 = 1 THEN 'order-' || n END,
           CASE WHEN n % 10 = 2 THEN '{{"customer": "c' || n % 1000 || '"}}' END,
           '[[],{{"order": ' || n || ', "to": "ada@example.com", "subject": "Your order"}}]',
           CASE WHEN n % 100 <> 0 THEN '{{"sent": true, "id": "message-' || n || '"}}' END,
           CASE WHEN n % 100 = 0 THEN 'the mail server is away' END,
           CASE WHEN n % 100 = 0 THEN '{traceback}' END,
           CASE WHEN n % 100 = 0 THEN 'print-' || n % 5 END
      FROM measured_runs
    """,
    """
    INSERT INTO duly_attempts
        (run_id, claim_number, generation, attempt, outcome, worker_id, started_at, finished_at,
         error, traceback)
    SELECT id, 0, 1, 0, 'raised', 'a worker', ended_at, ended_at, 'away', '{traceback}'
      FROM measured_runs
     WHERE n % 50 = 3
    """,
    """
    INSERT INTO duly_steps
        (run_id, name, kind, done, result, claim_number, began_at, ended_at)
    SELECT id, step.name, 'step', {true}, '{{"charged": 1200}}', 1, ended_at, ended_at
      FROM measured_runs, (SELECT 'charge' AS name UNION ALL SELECT 'mail' UNION ALL SELECT 'log')
           AS step
     WHERE n % 20 = 4
    """,
    """
    INSERT INTO duly_logs (run_id, claim_number, at, level, message)
    SELECT id, 1, ended_at, 'INFO', line.message
      FROM measured_runs, (SELECT 'the order was read' AS message
                           UNION ALL SELECT 'the message was sent to its customer') AS line
     WHERE n % 10 = 5
    """,
    """
    INSERT INTO duly_tags (name, value, run_id)
    SELECT 'customer', 'c' || n % 1000, id FROM measured_runs WHERE n % 10 = 2
    """,
    # Keys live for a day after the end of their run, so only the last day has any.
    """
    INSERT INTO duly_keys (task, key, run_id, fingerprint, ttl, active_only, expires_at)
    SELECT '{task}', 'order-' || n, id, 'print', 86400000000, {false}, ended_at + {day}
      FROM measured_runs
     WHERE n % 10 = 1 AND n > {count} * 13 / 14
    """,
    """
    INSERT INTO duly_tallies
        (at, span, task, queue, state, took, waited, runs, elapsed, delay, lasted)
    SELECT n * 3600000000, 3600, '{task}', 'default', 'succeeded', 5, 5, 1000, 1000, 1000, 1000
      FROM measured_runs
     WHERE n <= 200
    """,
    "UPDATE duly_accounts SET accepted = accepted + {count}",
]


def fill_postgres(url: str, count: int) -> None:
    """Insert ended runs."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes"
            " WHERE tablename = 'duly_history' AND indexname <> 'duly_history_pkey'"
        ).fetchall()
        day, words = "interval '1 day'", {"true": "true", "false": "false"}
        values = _values(count) | words | {"day": day}
        _fill(lambda text: connection.execute(text.encode()), found, _POSTGRES_RUNS, values)
        connection.execute("VACUUM (FREEZE, ANALYZE)")
        connection.execute("CHECKPOINT")


def fill_sqlite(file: Path, count: int) -> None:
    """Insert ended runs. Nothing is flushed meanwhile."""
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        connection.execute("PRAGMA journal_mode = OFF")
        connection.execute("PRAGMA synchronous = OFF")
        found = connection.execute(
            "SELECT name, sql FROM sqlite_master"
            " WHERE type = 'index' AND tbl_name = 'duly_history' AND sql IS NOT NULL"
        ).fetchall()
        values = _values(count) | {"true": "1", "false": "0", "day": "86400000000"}
        _fill(connection.execute, found, _SQLITE_RUNS, values)
        connection.execute(f"PRAGMA journal_mode = {mode}")


def _values(count: int) -> dict[str, Any]:
    span = round(2 * RETENTION_SECONDS) * MICROSECONDS
    return {
        "count": count,
        "first": SystemClock().now() - span,
        "step": span // count,
        "task": noop.name,
        "traceback": "  File shop/mail.py, line 12, in send: smtp.send(message)" * 20,
    }


def _fill(
    execute: Callable[[str], object],
    indexes: list[tuple[str, str]],
    runs: str,
    values: dict[str, Any],
) -> None:
    for name, _ in indexes:
        execute(f"DROP INDEX {name}")
    for text in [runs, *_SAME_ON_BOTH]:
        execute(text.format(**values))
    for _, definition in indexes:
        execute(definition)
