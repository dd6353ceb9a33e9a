"""Migrates the tables to the version that this code needs, by numbered SQL files, forward only."""

from pathlib import Path

from duly.errors import SchemaMismatch
from duly.store.schema import MigratableStore, Schema, SchemaMigration

OLDEST_CODE = 1
"""The oldest schema version whose code may continue to use the tables of this code."""


def migrations(package: str) -> list[SchemaMigration]:
    """Return all migrations of a dialect, oldest first."""
    folder = Path(__file__).parent / package.rpartition(".")[2] / "migrations"
    files = sorted(
        (item for item in folder.iterdir() if item.name.endswith(".sql")),
        key=lambda item: item.name,
    )
    return [SchemaMigration(int(item.name[:4]), item.name[:-4], item.read_text()) for item in files]


def record_of(step: SchemaMigration) -> dict[str, int | str]:
    """Return the row for the table of versions after a migration has run."""
    return {"version": step.version, "oldest_code": OLDEST_CODE, "name": step.name}


def newest(package: str) -> int:
    """Return the schema version that this code needs."""
    return migrations(package)[-1].version


def ensure(store: MigratableStore, package: str, shown_url: str) -> None:
    """Create the tables in an empty database. Refuse a database with an unsuitable schema."""
    schema = store.read_schema()
    if schema.version == 0:
        store.run_migrations(lambda now: [] if now.version else migrations(package))
        schema = store.read_schema()
    check(schema, package, shown_url, migrate="`duly db migrate`")


def check(schema: Schema, package: str, shown_url: str, *, migrate: str) -> None:
    """Refuse a database with an unsuitable schema. `migrate` is the command for an old one."""
    needed = newest(package)
    if schema.version < needed:
        message = (
            f"{shown_url} has schema version {schema.version}, this code needs {needed}; "
            f"run {migrate} once, then start again"
        )
        raise SchemaMismatch(message)
    if schema.oldest_code > needed:
        message = (
            f"{shown_url} has schema version {schema.version}, made by a newer duly that this code "
            f"(version {needed}) cannot use; upgrade duly here"
        )
        raise SchemaMismatch(message)


def migrate(store: MigratableStore, package: str) -> list[str]:
    """Run all missing migrations under the lock; return their names."""
    return store.run_migrations(
        lambda now: [step for step in migrations(package) if step.version > now.version]
    )
