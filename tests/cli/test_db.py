"""`duly db`: migrates the tables, reports their status, prints their SQL."""

import sqlite3
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from duly.cli.db import schema_finding
from duly.store.schema import Schema
from duly.store.store_factory import open_store, sqlite_path
from tests.cli.conftest import answer, error

pytestmark = pytest.mark.untouched


def test_migrate_sets_up_an_empty_database(cli, folder, url):
    before = cli("db", "status", "--url", url, "--json")
    migrated = cli("db", "migrate", "--url", url, "--json")
    after = cli("db", "status", "--url", url, "--json")

    assert before.exit_code == 1
    assert answer(before)["status"] == "empty"
    assert answer(migrated)["migrations"][0] == "0001_engine"
    assert answer(migrated)["schema_version"] == answer(after)["needed_version"]
    assert after.exit_code == 0
    assert answer(after)["status"] == "ok"
    assert answer(after)["schema_version"] == answer(after)["needed_version"]


def test_migrate_a_second_time_does_nothing(cli, folder, url):
    first = cli("db", "migrate", "--url", url)
    second = cli("db", "migrate", "--url", url)

    assert "ran 0001_engine" in first.stdout
    assert second.exit_code == 0
    assert "ran" not in second.stdout
    assert "has schema version" in second.stdout


def test_a_migrated_database_works(cli, folder, url):
    cli("db", "migrate", "--url", url, "--quiet")

    assert answer(cli("runs", "list", "--url", url, "--json"))["runs"] == []


def test_the_application_selects_the_database(app, cli):
    assert answer(cli("db", "status", "--json"))["status"] == "ok"


def test_the_status_is_printed_for_people(cli, app):
    result = cli("db", "status")

    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("store")
    assert "ok" in result.stdout


@pytest.mark.parametrize(
    ("schema", "needed", "status"),
    [
        (Schema(0, 0), 2, "empty"),
        (Schema(1, 1), 2, "migration needed"),
        (Schema(2, 1), 2, "ok"),
        (Schema(3, 2), 2, "ok"),
        (Schema(3, 3), 2, "code too old"),
    ],
)
def test_tables_are_judged_by_their_version(schema, needed, status):
    assert schema_finding(schema, needed).name == status


# Only a SQLite database is a file that a read could create.
@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "command", [("runs", "list"), ("dead", "list"), ("queues", "list"), ("workers", "list")]
)
def test_a_command_that_only_reads_creates_no_file(cli, folder, url, command):
    result = cli(*command, "--url", url, "--json")
    status = cli("db", "status", "--url", url)

    assert result.exit_code == 1
    assert error(result)["kind"] == "StoreRefused"
    assert status.exit_code == 1
    assert "duly db migrate" in status.stdout
    assert not Path(url.removeprefix("sqlite:///")).exists()


@pytest.mark.parametrize("scheme", ["sqlite", "postgresql", "postgres"])
def test_sql_is_printed_without_connecting(cli, folder, scheme):
    url = "sqlite:////nowhere/at/all.db" if scheme == "sqlite" else f"{scheme}://x@127.0.0.1:1/x"

    result = cli("db", "sql", "--url", url)
    as_json = answer(cli("db", "sql", "--url", url, "--json"))

    assert result.exit_code == 0
    assert "CREATE TABLE duly_runs" in result.stdout
    assert as_json["migrations"][0]["version"] == 1
    assert as_json["migrations"][0]["name"] == "0001_engine"


def test_no_sql_is_printed_after_the_newest_version(cli, folder):
    result = cli("db", "sql", "--after", "999")

    assert (result.exit_code, result.stdout) == (0, "")
    assert "no migration" in result.stderr


def test_sql_for_a_filled_database_builds_indexes_concurrently(cli, folder):
    url = "postgresql://x@127.0.0.1:1/x"

    assert "INDEX CONCURRENTLY" not in cli("db", "sql", "--url", url).stdout
    assert "INDEX CONCURRENTLY" in cli("db", "sql", "--url", url, "--after", "17").stdout


def test_the_printed_sql_creates_a_database_that_duly_accepts(cli, folder, url):
    script = cli("db", "sql", "--url", url).stdout
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
            connection.executescript(script)
    else:
        with psycopg.connect(url) as connection:
            connection.execute(script)

    status = cli("db", "status", "--url", url)
    listed = cli("runs", "list", "--url", url, "--json")

    assert status.exit_code == 0
    assert answer(listed)["runs"] == []


def test_an_unknown_kind_of_database_is_refused(cli, folder):
    for command in (("db", "sql"), ("db", "status"), ("db", "migrate"), ("runs", "list")):
        result = cli(*command, "--url", "mysql://localhost/x")

        assert result.exit_code == 1
        assert "is not a supported store URL" in result.stderr


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("command", [("runs", "list"), ("queues", "list"), ("doctor",)])
def test_a_command_without_an_application_suggests_it_before_a_new_database(cli, folder, command):
    result = cli(*command)

    said = result.stderr + result.stdout
    assert result.exit_code == 1
    assert "no database at" in said
    assert 0 < said.index("--app module:attribute") < said.index("duly db migrate")


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("options", [("--url", "sqlite:///other.db"), ("--app", "orders:app")])
def test_a_command_that_was_told_where_to_look_suggests_no_application(cli, folder, options):
    result = cli("runs", "list", *options)

    assert "no database at" in result.stderr
    assert "--app" not in result.stderr


@pytest.mark.parametrize("command", [("runs", "list"), ("dead", "groups"), ("audit",)])
def test_a_command_that_reads_a_foreign_database_creates_no_tables(
    cli, store_url, store_kind, command
):
    if store_kind.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(store_url))) as connection:
            connection.execute("CREATE TABLE theirs (id)")

    result = cli(*command, "--url", store_url)

    assert result.exit_code == 1
    assert "has no duly tables" in result.stderr
    with closing(open_store(store_url, migrate=False)) as store:
        assert store.read_schema().version == 0
