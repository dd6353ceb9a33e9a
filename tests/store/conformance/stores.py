"""Opens the stores that the suite runs on: one of each kind, with its clock and its tables."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Protocol

import psycopg

from duly.clock import MICROSECONDS
from duly.store.store_factory import sqlite_path

EPOCH = 1_800_000_000 * MICROSECONDS
SCHEMA_TABLE = "duly_schema"


class TestClock(Protocol):
    """The wall time of a store. It advances only when a test advances it."""

    __test__ = False

    def now(self) -> int:
        """Return the time in microseconds."""
        ...

    def advance(self, seconds: float) -> None:
        """Advance the time."""
        ...


class FakeClock:
    """The clock of an SQLite store, which gets its time from the caller."""

    def __init__(self) -> None:
        self._now = EPOCH
        self._uptime = 1_000 * MICROSECONDS

    def now(self) -> int:
        return self._now

    def uptime(self) -> int:
        return self._uptime

    def advance(self, seconds: float) -> None:
        self._now += round(seconds * MICROSECONDS)
        self._uptime += round(seconds * MICROSECONDS)

    def set_back(self, seconds: float) -> None:
        """Set the wall clock back, as an operator can."""
        self._now -= round(seconds * MICROSECONDS)


class ServerClock:
    """The clock of a PostgreSQL store: the server's clock, which in tests is a table of one row."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self._connection.execute("CREATE TABLE test_clock (now timestamptz NOT NULL)")
        self._connection.execute("INSERT INTO test_clock VALUES (duly_time(%s::bigint))", [EPOCH])
        self._connection.execute(
            "CREATE OR REPLACE FUNCTION duly_now() RETURNS timestamptz LANGUAGE sql STABLE"
            " AS 'SELECT now FROM test_clock'"
        )

    def now(self) -> int:
        query = "SELECT duly_microseconds(now) FROM test_clock"
        return self._connection.execute(query).fetchone()[0]

    def advance(self, seconds: float) -> None:
        self._connection.execute(
            "UPDATE test_clock SET now = now + %s::float8 * interval '1 microsecond'",
            [round(seconds * MICROSECONDS)],
        )

    def close(self) -> None:
        self._connection.close()


class Tables:
    """The tables of a store, which a test reads or changes without the store."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._names: list[str] = []

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query."""
        return self._connection.execute(sql).fetchall()

    def execute(self, sql: str) -> None:
        """Run a statement and commit it."""
        self._connection.execute(sql)

    def everything(self) -> dict[str, list[tuple[Any, ...]]]:
        """Return every row of every table of duly."""
        return {
            name: sorted(self.rows(f"SELECT * FROM {name}"), key=repr)  # noqa: S608 - the names are ours
            for name in self._tables()
        }

    def wipe(self) -> None:
        """Empty all tables except those that identify the schema and the store."""
        self.execute("BEGIN")
        for name in self._tables():
            if name not in {SCHEMA_TABLE, "duly_store"}:
                self.execute(f"DELETE FROM {name}")  # noqa: S608 - as above
        self.execute("COMMIT")

    def _tables(self) -> list[str]:
        if not self._names:
            catalog = (
                "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'duly%'"
                if isinstance(self._connection, sqlite3.Connection)
                else "SELECT tablename FROM pg_tables WHERE tablename::text LIKE 'duly%%'"
            )
            self._names = [name for (name,) in self.rows(catalog)]
        return self._names


def is_sqlite(url: str) -> bool:
    """Return whether a URL names an SQLite file."""
    return url.startswith("sqlite:")


def package_of(url: str) -> str:
    """Return the package that contains the store's migrations."""
    return "duly.store.sqlite" if is_sqlite(url) else "duly.store.postgres"


@contextmanager
def opened_tables(url: str) -> Iterator[Tables]:
    """Yield the tables of a store."""
    if is_sqlite(url):
        with closing(sqlite3.connect(sqlite_path(url), isolation_level=None)) as connection:
            yield Tables(connection)
        return
    with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
        yield Tables(connection)
