"""Migrates duly's tables inside Django's migrations. Both record the same version."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from django.db import connections, router, transaction
from django.db.migrations.loader import MigrationLoader

from duly.extend import migrate_schema, schema_versions

_DIALECTS: dict[str, Literal["sqlite", "postgresql"]] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
}
"""By Django's names of databases."""


def forwards(version: int) -> Callable[[Any, Any], None]:
    """Return a function that migrates the tables to a version.

    It does nothing if `duly db migrate` has done so before. A migration that builds an index
    CONCURRENTLY on PostgreSQL needs `atomic = False`.
    """

    def run(_apps: Any, schema_editor: Any) -> None:  # noqa: ANN401 - Django's
        if schema_editor.connection.vendor in _DIALECTS:  # No other database has duly's tables.
            _run(schema_editor.connection, version)

    return run


def make_tables_without_migrations(
    sender: Any,  # noqa: ANN401 - Django's
    using: str,
    **_signal: Any,  # noqa: ANN401 - as above
) -> None:
    """Create the tables if a test tells Django to run no migrations, as `--nomigrations` does."""
    module, _ = MigrationLoader.migrations_module(sender.label)
    connection = connections[using]
    dialect = _DIALECTS.get(connection.vendor)
    if module is None and dialect is not None and router.allow_migrate(using, sender.label):
        for version in schema_versions(dialect):
            _run(connection, version)


def _run(connection: Any, version: int) -> None:  # noqa: ANN401 - Django's
    with connection.cursor() as cursor:
        migrate_schema(
            cursor,
            _DIALECTS[connection.vendor],
            version,
            transaction=partial(transaction.atomic, using=connection.alias),
            in_one_transaction=connection.in_atomic_block or _is_pooled(connection, cursor),
        )


def _is_pooled(connection: Any, cursor: Any) -> bool:  # noqa: ANN401 - Django's
    """Return whether a pooler is between Django and the PostgreSQL server."""
    if connection.vendor != "postgresql":
        return False
    cursor.execute("SELECT pg_backend_pid()")
    return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)
