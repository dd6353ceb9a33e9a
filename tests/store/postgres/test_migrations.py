"""Migrations on PostgreSQL build indexes while the tables are written."""

import re
from contextlib import closing

import psycopg
import pytest

from duly.errors import StoreUnavailable
from duly.store import migrator
from duly.store.postgres.migration_runner import split
from duly.store.schema import SchemaMigration
from duly.store.store_factory import open_store
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import TIMEOUT, enqueue_one
from tests.store.postgres.verbs import InBackground, wait_for_builder

PACKAGE = "duly.store.postgres"
STEPS = migrator.migrations(PACKAGE)
STEP = """
-- An index on a table that grows; it is built concurrently.
DROP INDEX CONCURRENTLY IF EXISTS duly_probe;
CREATE INDEX CONCURRENTLY duly_probe ON duly_runs (created_at);

CREATE TABLE duly_probed (id integer);
"""
IS_VALID = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('duly_probe')"

INDEXED_UNDER_A_LOCK = {
    7: "the column that duly_handed_of_task covers is added and filled in the same transaction",
    9: "written before a migration could build an index concurrently (0018 was the first)",
    11: "written before 0018, too; it also replaces an index whose statements ask for the new one",
    12: "written before 0018, too",
    13: "the column that the indexes of duly_history name is added in the same transaction",
}
"""Migrations that lock a table with rows while they build an index on it, and why. A new migration
does not: it builds its index CONCURRENTLY."""

pytestmark = pytest.mark.untouched


@pytest.fixture
def watcher(url, store):
    """A connection outside of any transaction, which never waits long for a lock."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("SET lock_timeout = '5s'")
        yield connection


@pytest.fixture
def newer_code(monkeypatch):
    """The code of the next version, which has one more migration."""
    step = SchemaMigration(STEPS[-1].version + 1, "probe", STEP)
    monkeypatch.setattr(migrator, "migrations", lambda _package: [*STEPS, step])


def migrate(url):
    with closing(open_store(url, migrate=False)) as store:
        return migrator.migrate(store, PACKAGE)


def tables_indexed_under_a_lock(sql):
    """Return the tables that cannot be written during a migration, except those that it creates."""
    sql = re.sub(r"--[^\n]*", "", sql)
    indexed = re.findall(
        r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+(?!CONCURRENTLY)[^;]*?\bON\s+(?:ONLY\s+)?(\w+)",
        sql,
        re.IGNORECASE,
    )
    constrained = re.findall(
        r"ALTER\s+TABLE\s+(\w+)[^;]*?\bADD\s+(?:CONSTRAINT\s+\w+\s+)?(?:PRIMARY|UNIQUE)\b",
        sql,
        re.IGNORECASE,
    )
    made = re.findall(r"CREATE\s+TABLE\s+(?:IF\s+NOT\s+EXISTS\s+)?(\w+)", sql, re.IGNORECASE)
    return {*indexed, *constrained} - set(made)


def write(connection):
    connection.execute("UPDATE duly_runs SET progress = 1")


def test_an_index_is_built_while_other_sessions_write_to_the_table(
    store, url, connection, watcher, newer_code
):
    enqueue_one(store)
    write(connection)

    migrating = InBackground(lambda: migrate(url))
    try:
        wait_for_builder(watcher)
        # This connection has a lock_timeout, so a locked table fails the test at once.
        watcher.execute("DELETE FROM duly_runs WHERE task = 'none'")
        written = enqueue_one(store)
    finally:
        connection.commit()

    assert (migrating.answer(), bool(written)) == (["probe"], True)
    assert watcher.execute(IS_VALID).fetchone() == (True,)
    assert migrate(url) == []


def test_an_index_whose_build_was_interrupted_is_built_by_the_next_migrate(
    store, url, connection, watcher, newer_code
):
    enqueue_one(store)
    write(connection)

    migrating = InBackground(lambda: migrate(url))
    try:
        watcher.execute("SELECT pg_terminate_backend(%s)", (wait_for_builder(watcher),))
        with pytest.raises(StoreUnavailable):
            migrating.answer()
    finally:
        connection.commit()

    assert watcher.execute(IS_VALID).fetchone() == (False,)
    assert migrate(url) == ["probe"]
    assert watcher.execute(IS_VALID).fetchone() == (True,)


def test_two_migrators_at_once_do_not_deadlock(store, url, connection, watcher, newer_code):
    """The build waits for the snapshots of statements, so no statement may wait for its lock."""
    write(connection)

    first = InBackground(lambda: migrate(url))
    wait_for_builder(watcher)
    second = InBackground(lambda: migrate(url))
    wait_until(
        lambda: (
            watcher.execute(
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE '%pg_try_advisory_lock%'"
                "   AND pid <> pg_backend_pid()"
            ).fetchone()
            != (0,)
        ),
        seconds=TIMEOUT,
        what="a second migrator asks for the lock",
    )
    connection.commit()

    assert (first.answer(), second.answer()) == (["probe"], [])


def test_a_migration_through_a_pooler_runs_in_one_transaction(pgbouncer, newer_code, monkeypatch):
    url = pgbouncer.create_database()
    try:
        with monkeypatch.context() as older_code:
            older_code.setattr(migrator, "migrations", lambda _package: STEPS)
            open_store(url).close()

        assert (migrate(url), migrate(url)) == (["probe"], [])
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            assert connection.execute(IS_VALID).fetchone() == (True,)
    finally:
        pgbouncer.drop_database(url)


def test_statements_outside_a_transaction_are_first_in_every_migration():
    for step in STEPS:
        concurrent, rest = split(step.sql)

        assert " CONCURRENTLY " not in rest, step.name
        for number, statement in enumerate(concurrent):
            if statement.startswith("CREATE"):
                before = concurrent[number - 1 : number]
                name = statement.split()[3]
                assert before == [f"DROP INDEX CONCURRENTLY IF EXISTS {name}"], step.name
            else:
                assert statement.startswith("DROP INDEX CONCURRENTLY IF EXISTS "), step.name


def test_only_listed_migrations_lock_a_table_with_rows_while_they_build_an_index():
    locking = {step.version for step in STEPS if tables_indexed_under_a_lock(step.sql)}

    assert locking == set(INDEXED_UNDER_A_LOCK)


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("CREATE INDEX one ON duly_runs (id);", {"duly_runs"}),
        ("CREATE UNIQUE INDEX one\n    ON duly_runs (id);", {"duly_runs"}),
        ("CREATE INDEX IF NOT EXISTS one ON ONLY duly_runs (id);", {"duly_runs"}),
        ("ALTER TABLE duly_runs ADD CONSTRAINT one UNIQUE (id);", {"duly_runs"}),
        ("ALTER TABLE duly_runs ADD COLUMN one integer, ADD PRIMARY KEY (id);", {"duly_runs"}),
        ("CREATE INDEX CONCURRENTLY one ON duly_runs (id);", set()),
        ("ALTER TABLE duly_runs ADD COLUMN one integer CHECK (one >= 1);", set()),
        ("CREATE TABLE duly_new (id integer);\nCREATE INDEX one ON duly_new (id);", set()),
        ("-- CREATE INDEX one ON duly_runs (id);", set()),
    ],
)
def test_an_index_on_a_table_of_an_earlier_migration_is_found(sql, tables):
    assert tables_indexed_under_a_lock(sql) == tables


def test_a_migration_may_take_longer_than_other_statements_of_its_role(store, url, monkeypatch):
    step = SchemaMigration(STEPS[-1].version + 1, "slow", "SELECT pg_sleep(0.5);")
    monkeypatch.setattr(migrator, "migrations", lambda _package: [*STEPS, step])

    assert migrate(f"{url}?options=-cstatement_timeout%3D400") == ["slow"]
