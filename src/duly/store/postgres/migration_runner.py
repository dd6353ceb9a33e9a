"""Migrates a database's tables to a version, in a session of the store's or of Django's.

An index on a table that may be large is built CONCURRENTLY, so that the table accepts writes during
the build. Such a statement runs outside of any transaction, and a crash during it can leave an
invalid index. So a migration begins with these statements. Each of them can be repeated, because it
first drops the index if it exists, and then builds it. The rest of the migration and its record
follow in one transaction.
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from duly.store.migrator import record_of
from duly.store.schema import Schema, SchemaMigration

LOCK_POLL_SECONDS = 0.1

_LOCK = """
SELECT pg_catalog.pg_try_advisory_lock(
           pg_catalog.hashtextextended('duly migrations', 1685417081))
"""
_UNLOCK = """
SELECT pg_catalog.pg_advisory_unlock(pg_catalog.hashtextextended('duly migrations', 1685417081))
"""
_LOCK_IN_TRANSACTION = """
SELECT pg_catalog.pg_try_advisory_xact_lock(
           pg_catalog.hashtextextended('duly migrations', 1685417081))
"""
_EXISTS = "SELECT pg_catalog.to_regclass('duly_schema') IS NOT NULL"
_CREATE = """
CREATE TABLE IF NOT EXISTS duly_schema
    (version integer NOT NULL, oldest_code integer NOT NULL, name text NOT NULL)
"""
_RAN = "INSERT INTO duly_schema VALUES (%(version)s, %(oldest_code)s, %(name)s)"
_VERSION = """
SELECT coalesce(pg_catalog.max(version), 0), coalesce(pg_catalog.max(oldest_code), 0)
  FROM duly_schema
"""
_CONCURRENT = re.compile(r"(?:\s|--[^\n]*\n)*((?:CREATE|DROP) INDEX CONCURRENTLY [^;]*);")


class MigrationCursor(Protocol):
    """A psycopg cursor, or Django's wrapper of one."""

    def execute(self, sql: Any, parameters: Any = None, /) -> Any: ...  # noqa: ANN401 - two libraries
    def fetchone(self) -> Any: ...  # noqa: ANN401 - two libraries


def run(
    cursor: MigrationCursor,
    plan: Callable[[Schema], list[SchemaMigration]],
    transaction: Callable[[], AbstractContextManager[Any]],
    *,
    in_one_transaction: bool,
) -> list[SchemaMigration]:
    """Get the missing steps from `plan` under the migration lock. Run and return them.

    With `in_one_transaction`, tables are locked while their indexes are built. Use it inside a
    caller's transaction, and with a pooler, where a session lock has no owner.
    """
    if in_one_transaction:
        with transaction():
            _wait_for_lock(cursor, _LOCK_IN_TRANSACTION)
            missing = plan(_read_schema(cursor))
            _run_at_once(cursor, missing)
        return missing
    with _locked(cursor):
        schema = _read_schema(cursor)
        missing = plan(schema)
        if schema.version == 0:
            with transaction():
                _run_at_once(cursor, missing)
        else:
            for step in missing:
                _run_alone(cursor, step, transaction)
        return missing


def _run_at_once(cursor: MigrationCursor, steps: list[SchemaMigration]) -> None:
    if steps:
        cursor.execute(_CREATE)
    for step in steps:
        cursor.execute(step.for_one_transaction().sql)
        cursor.execute(_RAN, record_of(step))


def _run_alone(
    cursor: MigrationCursor,
    step: SchemaMigration,
    transaction: Callable[[], AbstractContextManager[Any]],
) -> None:
    concurrent, rest = split(step.sql)
    for statement in concurrent:
        cursor.execute(statement)
    with transaction():
        if rest.strip():
            cursor.execute(rest)
        cursor.execute(_RAN, record_of(step))


def split(sql: str) -> tuple[list[str], str]:
    """Return the leading statements that cannot run in a transaction, and the remaining SQL."""
    concurrent = []
    rest = 0
    while (found := _CONCURRENT.match(sql, rest)) is not None:
        concurrent.append(found[1])
        rest = found.end()
    return concurrent, sql[rest:]


@contextmanager
def _locked(cursor: MigrationCursor) -> Iterator[None]:
    _wait_for_lock(cursor, _LOCK)
    try:
        yield
    finally:
        # If the connection is lost, the server releases the lock, and an error is already raised.
        with suppress(Exception):
            cursor.execute(_UNLOCK)


def _wait_for_lock(cursor: MigrationCursor, lock: str) -> None:
    """Poll for the lock, because a session that waits inside a statement holds a snapshot.

    The other migrator may be building an index, and this build waits for all older snapshots.
    """
    while True:
        cursor.execute(lock)
        if cursor.fetchone()[0]:
            return
        time.sleep(LOCK_POLL_SECONDS)


def _read_schema(cursor: MigrationCursor) -> Schema:
    cursor.execute(_EXISTS)
    if not cursor.fetchone()[0]:
        return Schema(0, 0)
    cursor.execute(_VERSION)
    return Schema(*cursor.fetchone())
