"""The store that every test of this folder runs on, once per kind, and its clock and tables.

On SQLite the store is a fresh file. On PostgreSQL, creating a database takes longer than most
tests, so there is one database per kind, which is emptied before every test. Its clock is never set
back between tests. The database contains the decoys of another role (see `tests/store/decoys.py`):
a call that another role could take over fails. A test that needs a database of its own requests
`store_url` instead.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import Any, NamedTuple

import psycopg
import pytest

from duly.guard.redis import RedisLedger
from duly.store.store_factory import open_store
from tests.store.conformance.stores import FakeClock, ServerClock, Tables, TestClock, opened_tables
from tests.store.conformance.verbs import register
from tests.store.decoys import plant


class Opened(NamedTuple):
    """A store with its clock and its tables."""

    store: Any
    clock: TestClock
    tables: Tables | None
    """None on Redis, which has none."""
    open_another: Callable[[], Any]
    """Open the same store once more, as another process would."""


class SharedDatabases:
    """One PostgreSQL database per kind, opened when it is first requested."""

    def __init__(self, servers: Any) -> None:
        self._servers = servers
        self._open = ExitStack()
        self._by_kind: dict[str, tuple[str, Any, TestClock, Tables]] = {}

    def get(self, kind: str) -> tuple[str, Any, TestClock, Tables]:
        """Return the URL of an empty database of a kind, with its store, clock and tables."""
        if kind in self._by_kind:
            try:
                self._by_kind[kind][-1].wipe()
            except psycopg.Error:
                # A test that was interrupted during a query leaves an unusable connection.
                del self._by_kind[kind]
        if kind not in self._by_kind:
            self._by_kind[kind] = self._create(kind)
        return self._by_kind[kind]

    def close(self) -> None:
        """Drop all databases."""
        self._open.close()

    def _create(self, kind: str) -> tuple[str, Any, TestClock, Tables]:
        server = self._servers.pgbouncer() if kind == "pgbouncer" else self._servers.postgres(kind)
        url = server.create_database()
        self._open.callback(server.drop_database, url)
        plant(url)
        store = self._open.enter_context(closing(open_store(url)))
        clock = self._open.enter_context(closing(ServerClock(url)))
        tables = self._open.enter_context(opened_tables(url))
        plant(url)
        return url, store, clock, tables


@pytest.fixture(scope="session")
def shared_databases(servers: Any) -> Iterator[SharedDatabases]:
    """The PostgreSQL databases that the tests of this folder share."""
    with closing(SharedDatabases(servers)) as databases:
        yield databases


@pytest.fixture
def opened(store_kind: str, tmp_path: Any, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """An empty store of each kind with its clock and tables."""
    with ExitStack() as stack:
        if store_kind.startswith("sqlite"):
            url, clock = request.getfixturevalue("store_url"), FakeClock()
            store = stack.enter_context(closing(open_store(url, clock=clock)))
            tables = stack.enter_context(opened_tables(url))
        elif store_kind == "redis":
            url, clock, tables = request.getfixturevalue("redis_url"), FakeClock(), None
            store = stack.enter_context(closing(RedisLedger(url, clock=clock.now)))
        else:
            url, store, clock, tables = request.getfixturevalue("shared_databases").get(store_kind)

        def open_another() -> Any:
            return stack.enter_context(closing(open_store(url, clock=clock)))

        yield Opened(store, clock, tables, open_another)


@pytest.fixture
def store(opened: Opened) -> Any:
    """An empty store of each kind."""
    return opened.store


@pytest.fixture
def clock(opened: Opened) -> TestClock:
    """The wall time of the store."""
    return opened.clock


@pytest.fixture
def tables(opened: Opened) -> Tables | None:
    """The tables of the store."""
    return opened.tables


@pytest.fixture
def open_another(opened: Opened) -> Callable[[], Any]:
    """A function that opens the same store again."""
    return opened.open_another


@pytest.fixture
def worker(store: Any) -> str:
    """A live worker that knows all tasks of the tests."""
    return register(store)
