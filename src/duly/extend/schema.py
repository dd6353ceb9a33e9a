"""Makes duly's tables in steps, for programs that have a migration tool of their own."""

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
    """Return the versions of duly's tables, oldest first. Each has a step that leads to it."""
    return tuple(step.version for step in migrations(_PACKAGES[dialect]))


def run_schema_step(
    cursor: Any,  # noqa: ANN401 - of one of several libraries
    dialect: Dialect,
    version: int,
    *,
    transaction: Callable[[], AbstractContextManager[Any]],
    in_one_transaction: bool = False,
) -> None:
    """Bring duly's tables from the version before to this version, or do nothing if they have it.

    Tables of an earlier version than that raise SchemaMismatch, and nothing changes.

    `cursor` is one of sqlite3, psycopg or Django, on a connection that commits by itself.
    `transaction` returns a block that is a transaction on this connection. On PostgreSQL, a step
    may build an index before its transaction, so that the table can be written meanwhile. With
    `in_one_transaction` the whole step is in the transaction: for callers that are inside one, and
    for connections through a pooler, where a session cannot hold the migration lock.
    """
    step = next((each for each in migrations(_PACKAGES[dialect]) if each.version == version), None)
    if step is None:
        raise BadOption(f"this version of duly has no step {version} for {dialect}")
    plan = partial(_missing, step)
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
    for step in plan(Schema(*cursor.fetchone())):
        for statement in migration_statements.statements(step):
            cursor.execute(statement)
        cursor.execute(migration_statements.RAN, record_of(step))


def _missing(step: SchemaMigration, schema: Schema) -> list[SchemaMigration]:
    if schema.version >= step.version:
        return []
    if schema.version < step.version - 1:
        raise SchemaMismatch(
            f"step {step.version} cannot run on tables of version {schema.version}; "
            f"run step {schema.version + 1} first"
        )
    return [step]
