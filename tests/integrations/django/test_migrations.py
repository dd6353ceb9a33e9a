"""Django's migrations and the store's own agree, in either order."""

from contextlib import closing
from io import StringIO

import psycopg
import pytest
from django.core.management import call_command
from django.db import OperationalError, connection
from django.db.migrations.loader import MigrationLoader

from duly.errors import SchemaMismatch
from duly.store.migrator import migrate, migrations
from duly.store.postgres.migration_runner import split
from duly.store.store_factory import open_store
from tests.integrations.django.project import set_up, using
from tests.store.postgres.verbs import InBackground, wait_for_builder

pytestmark = pytest.mark.untouched


@pytest.fixture
def project(store_url):
    with using(default=store_url):
        yield store_url


def package_of(url: str) -> str:
    return "duly.store.sqlite" if url.startswith("sqlite") else "duly.store.postgres"


def known(url: str) -> list[int]:
    return [step.version for step in migrations(package_of(url))]


def versions(url: str) -> list[int]:
    with connection.cursor() as cursor:
        cursor.execute("SELECT version FROM duly_schema ORDER BY version")
        return [row[0] for row in cursor.fetchall()]


def test_migrate_makes_the_tables_that_the_store_asks_for(project):
    call_command("migrate", "duly", verbosity=0)
    assert versions(project) == known(project)
    with closing(open_store(project, migrate=False)) as store:
        assert migrate(store, package_of(project)) == []
        assert store.list_workers() == []


def test_migrate_adopts_tables_that_duly_made(project):
    open_store(project).close()
    call_command("migrate", "duly", verbosity=0)
    assert versions(project) == known(project)


def test_duly_completes_tables_that_django_made_partly(project):
    call_command("migrate", "duly", "0003", verbosity=0)
    with closing(open_store(project, migrate=False)) as store:
        assert len(migrate(store, package_of(project))) == len(known(project)) - 3
    call_command("migrate", "duly", verbosity=0)
    assert versions(project) == known(project)


def test_reversed_migrations_can_be_applied_again(project):
    call_command("migrate", "duly", verbosity=0)
    call_command("migrate", "duly", "zero", verbosity=0)
    call_command("migrate", "duly", verbosity=0)
    assert versions(project) == known(project)


@pytest.mark.stores("sqlite-wal")
def test_every_store_migration_has_a_django_migration(project):
    loader = MigrationLoader(None)
    of_django = sorted(name for app, name in loader.disk_migrations if app == "duly")
    for package in ("duly.store.sqlite", "duly.store.postgres"):
        assert of_django[: len(migrations(package))] == [step.name for step in migrations(package)]


@pytest.mark.stores("sqlite-wal")
def test_a_migration_that_builds_indexes_concurrently_is_not_atomic(project):
    of_django = MigrationLoader(None).disk_migrations
    steps = migrations("duly.store.postgres")
    concurrent = [step.name for step in steps if split(step.sql)[0]]
    assert [step.name for step in steps if not of_django["duly", step.name].atomic] == concurrent


def migrate_in_a_thread() -> None:
    try:
        call_command("migrate", "duly", verbosity=0)
    finally:
        connection.close()


@pytest.mark.stores("postgres")
def test_migrate_builds_an_index_while_other_sessions_write_and_repairs_it(project):
    call_command("migrate", "duly", "0018", verbosity=0)
    delete = "DELETE FROM duly_keys WHERE task = 'none'"
    is_valid = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('duly_keys_of_run')"
    with (
        closing(psycopg.connect(project, options="-c lock_timeout=5s")) as writer,
        closing(psycopg.connect(project, autocommit=True, options="-c lock_timeout=5s")) as watcher,
    ):
        writer.execute(delete)
        migrating = InBackground(migrate_in_a_thread)
        builder = wait_for_builder(watcher)
        watcher.execute(delete)
        watcher.execute("SELECT pg_terminate_backend(%s)", (builder,))
        with pytest.raises(OperationalError):
            migrating.answer()
        writer.rollback()

        assert watcher.execute(is_valid).fetchone() == (False,)
        call_command("migrate", "duly", verbosity=0)
        assert watcher.execute(is_valid).fetchone() == (True,)
    assert versions(project) == known(project)


@pytest.mark.stores("sqlite-wal")
def test_makemigrations_finds_no_changes(project):
    out = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=out)
    assert "No changes" in out.getvalue()


def test_the_error_for_missing_tables_names_the_remedy(project):
    set_up()
    from tests.integrations.django import tasks  # noqa: PLC0415 - needs settings

    with pytest.raises(SchemaMismatch, match=r"manage\.py migrate"):
        tasks.add.enqueue(1)
