"""Runs the store's own migrations inside Django's, and writes the version that both go by."""

from collections.abc import Callable
from typing import Any

from duly.store.migrator import migrations, record_of


def forwards(version: int) -> Callable[[Any, Any], None]:
    """Return what brings the tables to a version, if `duly db migrate` has not done so before."""

    def run(_apps: Any, schema_editor: Any) -> None:  # noqa: ANN401 - Django's
        connection = schema_editor.connection
        dialect = {"sqlite": _on_sqlite, "postgresql": _on_postgresql}.get(connection.vendor)
        if dialect is not None:  # Nothing of duly's can lie in another database.
            with connection.cursor() as cursor:
                dialect(cursor, version)

    return run


def _on_sqlite(cursor: Any, version: int) -> None:  # noqa: ANN401 - Django's
    from duly.store.sqlite import migrating  # noqa: PLC0415 - one driver only

    _migrate(cursor, version, "duly.store.sqlite", migrating)


def _on_postgresql(cursor: Any, version: int) -> None:  # noqa: ANN401 - Django's
    from duly.store.postgres import migrating  # noqa: PLC0415 - one driver only

    cursor.execute(migrating.LOCK)
    _migrate(cursor, version, "duly.store.postgres", migrating)


def _migrate(cursor: Any, version: int, package: str, migrating: Any) -> None:  # noqa: ANN401
    cursor.execute(migrating.CREATE)
    cursor.execute(migrating.VERSION)
    if cursor.fetchone()[0] >= version:
        return
    (step,) = [step for step in migrations(package) if step.version == version]
    for statement in migrating.statements(step):
        cursor.execute(statement)
    cursor.execute(migrating.RAN, record_of(step))
