"""Runs the store's own migrations inside Django's, and records the version that both use."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.db import connections, router, transaction
from django.db.migrations.loader import MigrationLoader

from duly.store.migrator import migrations, record_of
from duly.store.schema import Schema, SchemaMigration

_PACKAGES = {"sqlite": "duly.store.sqlite", "postgresql": "duly.store.postgres"}


def forwards(version: int) -> Callable[[Any, Any], None]:
    """Return a function that migrates the tables to a version.

    It does nothing if `duly db migrate` has done so before. A migration that builds an index
    CONCURRENTLY on PostgreSQL needs `atomic = False`.
    """

    def run(_apps: Any, schema_editor: Any) -> None:  # noqa: ANN401 - Django's
        connection = schema_editor.connection
        dialect = _DIALECTS.get(connection.vendor)
        if dialect is not None:  # Other databases cannot contain duly's tables.
            dialect(connection, version)

    return run


def make_tables_without_migrations(
    sender: Any,  # noqa: ANN401 - Django's
    using: str,
    **_signal: Any,  # noqa: ANN401 - as above
) -> None:
    """Create the tables if a test tells Django to run no migrations, as `--nomigrations` does."""
    module, _ = MigrationLoader.migrations_module(sender.label)
    connection = connections[using]
    package = _PACKAGES.get(connection.vendor)
    if module is None and package is not None and router.allow_migrate(using, sender.label):
        for step in migrations(package):
            _DIALECTS[connection.vendor](connection, step.version)


def _on_sqlite(connection: Any, version: int) -> None:  # noqa: ANN401 - Django's
    from duly.store.sqlite import migration_statements  # noqa: PLC0415 - one driver only

    with transaction.atomic(using=connection.alias), connection.cursor() as cursor:
        cursor.execute(migration_statements.CREATE)
        cursor.execute(migration_statements.VERSION)
        for step in _missing(_PACKAGES["sqlite"], version, Schema(*cursor.fetchone())):
            for statement in migration_statements.statements(step):
                cursor.execute(statement)
            cursor.execute(migration_statements.RAN, record_of(step))


def _on_postgresql(connection: Any, version: int) -> None:  # noqa: ANN401 - Django's
    from duly.store.postgres import migration_runner  # noqa: PLC0415 - one driver only

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pooled = cursor.fetchone()[0] != connection.connection.info.backend_pid
        migration_runner.run(
            cursor,
            partial(_missing, _PACKAGES["postgresql"], version),
            partial(transaction.atomic, using=connection.alias),
            in_one_transaction=pooled or connection.in_atomic_block,
        )


def _missing(package: str, version: int, schema: Schema) -> list[SchemaMigration]:
    return [
        step for step in migrations(package) if step.version == version and schema.version < version
    ]


_DIALECTS: dict[str, Callable[[Any, int], None]] = {
    "sqlite": _on_sqlite,
    "postgresql": _on_postgresql,
}
