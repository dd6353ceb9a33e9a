"""The first use of an empty database creates the tables. Tables of another version are refused."""

from contextlib import closing

import pytest

from duly.errors import SchemaMismatch
from duly.store import migrator
from duly.store.schema import SchemaMigration
from duly.store.store_factory import open_store
from tests.store.conformance.stores import opened_tables, package_of
from tests.store.conformance.verbs import at_once, enqueue_one, listed_ids

STEP = "CREATE TABLE duly_probe (id integer);"

pytestmark = pytest.mark.untouched


@pytest.fixture
def store(store_url):
    """A new store for every test, because these tests change the tables themselves."""
    with closing(open_store(store_url)) as store:
        yield store


@pytest.fixture
def tables(store, store_url):
    """The tables of the store."""
    with opened_tables(store_url) as tables:
        yield tables


@pytest.fixture
def newer_code(store_url, monkeypatch):
    """The code of the next version, which has one more migration."""
    add_migration(store_url, monkeypatch, "probe", STEP)


def add_migration(store_url, monkeypatch, name, sql):
    steps = migrator.migrations(package_of(store_url))
    one_more = SchemaMigration(steps[-1].version + 1, name, sql)
    monkeypatch.setattr(migrator, "migrations", lambda _package: [*steps, one_more])


def test_opening_an_empty_database_creates_the_tables(store, store_url, tables):
    versions = [step.version for step in migrator.migrations(package_of(store_url))]

    assert store.read_schema().version == versions[-1]
    assert [found for (found,) in tables.rows("SELECT version FROM duly_schema")] == versions


def test_opening_a_database_again_keeps_its_rows(store, store_url):
    run_id = enqueue_one(store)

    with closing(open_store(store_url)) as reopened:
        assert listed_ids(reopened) == [run_id]


def test_a_migration_that_was_run_is_not_run_again(store, store_url, tables):
    before = tables.everything()

    assert migrator.migrate(store, package_of(store_url)) == []
    assert tables.everything() == before


def test_tables_of_an_older_version_are_refused_until_they_are_migrated(
    store, store_url, newer_code
):
    run_id = enqueue_one(store)

    with pytest.raises(SchemaMismatch, match="duly db migrate"):
        open_store(store_url)
    first = migrator.migrate(store, package_of(store_url))
    second = migrator.migrate(store, package_of(store_url))

    assert (first, second) == (["probe"], [])
    with closing(open_store(store_url)) as reopened:
        assert listed_ids(reopened) == [run_id]


def test_newer_tables_that_this_code_cannot_use_are_refused(store, store_url, tables):
    tables.execute("INSERT INTO duly_schema (version, oldest_code, name) VALUES (99, 98, 'later')")

    with pytest.raises(SchemaMismatch, match="upgrade duly"):
        open_store(store_url)


def test_newer_tables_that_this_code_can_use_are_opened(store, store_url, tables):
    run_id = enqueue_one(store)
    tables.execute("INSERT INTO duly_schema (version, oldest_code, name) VALUES (99, 1, 'later')")

    with closing(open_store(store_url)) as reopened:
        assert listed_ids(reopened) == [run_id]


def test_a_migration_that_fails_changes_nothing(store, store_url, tables, monkeypatch):
    broken = "CREATE TABLE duly_half (id integer);\nSELECT nonsense;"
    add_migration(store_url, monkeypatch, "broken", broken)
    before = tables.everything()

    with pytest.raises(Exception, match="nonsense"):
        migrator.migrate(store, package_of(store_url))

    with opened_tables(store_url) as fresh:
        assert fresh.everything() == before
    assert enqueue_one(store)


def test_concurrent_openings_of_an_empty_database_create_the_tables_once(store_url):
    stores = at_once(*[lambda: open_store(store_url)] * 4)

    try:
        run_id = enqueue_one(stores[0])
        assert {tuple(listed_ids(store)) for store in stores} == {(run_id,)}
        with opened_tables(store_url) as tables:
            names = [name for (name,) in tables.rows("SELECT name FROM duly_schema")]
        assert names == [step.name for step in migrator.migrations(package_of(store_url))]
    finally:
        for store in stores:
            store.close()
