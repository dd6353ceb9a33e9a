"""A migration tool of another system makes duly's tables, one version after the other."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, NamedTuple

import psycopg
import pytest

from duly import BadOption, Duly
from duly.errors import SchemaMismatch
from duly.extend import migrate_schema, schema_versions
from duly.store.store_factory import sqlite_path

pytestmark = pytest.mark.untouched


class Tool(NamedTuple):
    """A connection that commits by itself, and how to open a transaction on it."""

    connection: Any
    dialect: Any
    transaction: Callable[[], AbstractContextManager[Any]]

    def run(self, version: int, **options: bool) -> None:
        migrate_schema(
            self.connection.cursor(),
            self.dialect,
            version,
            transaction=self.transaction,
            **options,
        )

    def recorded(self) -> list[int]:
        found = self.connection.execute("SELECT version FROM duly_schema ORDER BY version")
        return [row[0] for row in found.fetchall()]


@pytest.fixture
def tool(store_url: str) -> Iterator[Tool]:
    """A migration tool on an empty database."""
    if store_url.startswith("sqlite"):
        with closing(sqlite3.connect(sqlite_path(store_url), isolation_level=None)) as connection:
            yield Tool(connection, "sqlite", lambda: sqlite_transaction(connection))
    else:
        with psycopg.connect(store_url, autocommit=True) as connection:
            yield Tool(connection, "postgresql", connection.transaction)


@contextmanager
def sqlite_transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@pytest.mark.parametrize("in_one_transaction", [False, True])
def test_all_versions_together_make_the_tables_that_duly_needs(tool, store_url, in_one_transaction):
    versions = schema_versions(tool.dialect)
    for version in versions:
        tool.run(version, in_one_transaction=in_one_transaction)

    assert tool.recorded() == list(versions) == sorted(versions)
    with closing(Duly(store_url)) as app:
        run = app.task(name="work")(lambda: None).enqueue()
        app.worker().drain(timeout=30)
        assert run.refresh().state == "succeeded"
    assert tool.recorded() == list(versions), "duly had nothing left to do"


def test_a_migration_to_a_version_that_the_tables_have_does_nothing(tool):
    first, second, *_ = schema_versions(tool.dialect)
    for version in (first, second, second, first):
        tool.run(version)

    assert tool.recorded() == [first, second]


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("in_one_transaction", [False, True])
def test_tables_that_lack_an_earlier_version_are_not_migrated(tool, before, in_one_transaction):
    versions = schema_versions(tool.dialect)
    for version in versions[:before]:
        tool.run(version)

    # The last one needs no table of the others, so nothing else would stop it.
    with pytest.raises(SchemaMismatch, match=f"to version {before + 1} first"):
        tool.run(versions[-1], in_one_transaction=in_one_transaction)

    for version in versions[before:]:
        tool.run(version)
    assert tool.recorded() == list(versions)


def test_a_version_that_this_release_of_duly_does_not_have_is_refused(tool):
    beyond = schema_versions(tool.dialect)[-1] + 1

    with pytest.raises(BadOption, match=f"no tables of version {beyond}"):
        tool.run(beyond)


def test_a_migration_that_fails_changes_nothing(tool):
    first, second, *_ = schema_versions(tool.dialect)
    tool.run(first)

    @contextmanager
    def failing() -> Iterator[None]:
        with tool.transaction():
            yield
            raise InterruptedError

    with pytest.raises(InterruptedError):
        tool._replace(transaction=failing).run(second)

    assert tool.recorded() == [first]
    tool.run(second)
    assert tool.recorded() == [first, second]
