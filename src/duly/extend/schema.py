"""Makes duly's tables version by version, for programs that have a migration tool of their own."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal

from duly.errors import BadOption, SchemaMismatch
from duly.store.migrator import migrations, record_of
from duly.store.schema import Schema, SchemaMigration

Dialect = Literal["sqlite", "postgresql"]

_PACKAGES: dict[Dialect, str] = {"sqlite": "duly.store.sqlite", "postgresql": "duly.store.postgres"}


def schema_versions(dialect: Dialect) -> tuple[int, ...]:
    """Return the versions of duly's tables, oldest first. `migrate_schema` leads to each."""
    return tuple(migration.version for migration in migrations(_PACKAGES[dialect]))


def migrate_schema(
    cursor: Any,  # noqa: ANN401 - of one of several libraries
    dialect: Dialect,
    version: int,
    *,
    transaction: Callable[[], AbstractContextManager[Any]],
    in_one_transaction: bool = False,
) -> None:
    """Migrate duly's tables from the version before to this one, or do nothing if they have it.

    Tables of an earlier version than that raise SchemaMismatch, and nothing changes.

    `cursor` is one of sqlite3, psycopg or Django, on a connection that commits by itself.
    `transaction` returns a block that is a transaction on this connection. On PostgreSQL, an index
    may be built before that transaction, so that the table can be written meanwhile. With
    `in_one_transaction` the whole migration is in the transaction: for callers that are inside one,
    and for connections through a pooler, where a session cannot hold the migration lock.
    """
    found = [each for each in migrations(_PACKAGES[dialect]) if each.version == version]
    if not found:
        raise BadOption(f"this release of duly has no tables of version {version} for {dialect}")
    plan = partial(_missing, found[0])
    if dialect == "sqlite":
        with transaction():
            _run_on_sqlite(cursor, plan)
        return
    from duly.store.postgres import migration_runner  # noqa: PLC0415 - one driver only

    migration_runner.run(cursor, plan, transaction, in_one_transaction=in_one_transaction)


def _run_on_sqlite(cursor: Any, plan: Callable[[Schema], list[SchemaMigration]]) -> None:  # noqa: ANN401 - as above
    from duly.store.sqlite import migration_statements  # noqa: PLC0415 - one driver only

    cursor.execute(migration_statements.CREATE)
    cursor.execute(migration_statements.VERSION)
    for migration in plan(Schema(*cursor.fetchone())):
        for statement in migration_statements.statements(migration):
            cursor.execute(statement)
        cursor.execute(migration_statements.RAN, record_of(migration))


def _missing(migration: SchemaMigration, schema: Schema) -> list[SchemaMigration]:
    if schema.version >= migration.version:
        return []
    if schema.version < migration.version - 1:
        raise SchemaMismatch(
            f"tables of version {schema.version} cannot be migrated to version "
            f"{migration.version}; migrate them to version {schema.version + 1} first"
        )
    return [migration]
