"""Fixtures that every test may use: the stores, and the servers behind them.

A test that asks for `store_url` runs once on every kind of store in the conformance suite, and once
on SQLite and once on PostgreSQL elsewhere. That PostgreSQL is the newest there is; with
DULY_TEST_OLDEST_POSTGRES, as in `make prove`, it is the oldest where a test is not about PostgreSQL
alone. `@pytest.mark.stores("postgres")` narrows the stores to the kinds whose names begin so;
`@pytest.mark.pgbouncer` adds one run through PgBouncer; `@pytest.mark.untouched` is for tests of
how a database is set up. A test of the conformance suite that is about the guard alone adds one on
Redis by `@pytest.mark.redis`.

Markers are set here too, so that `-m` can select by them: `surface` on each test of a folder above
the engine, `on_postgres` on each test that uses a PostgreSQL, and `django` on each test of Django.
`make test` leaves out the tests of surfaces on PostgreSQL, and `make test-surfaces STORE=postgres`
runs those.
"""

import gc
import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from duly import Duly, faultpoints
from duly.store.store_factory import open_store
from duly.testing import Harness
from tests.servers.browser import close_open
from tests.servers.fresh import fresh_store
from tests.servers.kinds import (
    BEHIND_PGBOUNCER,
    KINDS,
    OLDEST_POSTGRES,
    POSTGRES_KINDS,
    POSTGRES_URL_VARIABLE,
    REDIS_URL_VARIABLE,
    STORE_KINDS,
    StoreKind,
    kind_or_skip,
    one_of_each_database,
)
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresEndpoint, PostgresServer, database_of
from tests.servers.redis import RedisEndpoint, RedisServer
from tests.servers.summary import STORE_PROPERTY, WhatRan
from tests.servers.unclosed import Unclosed

SUMMARY_FILE = os.environ.get("SUMMARY", ".test-summary.json")
TESTS = Path(__file__).parent

# The folders above the engine. They know a database by the store's protocol alone, and the
# conformance suite shows that both databases fulfil it. The tests of the proof harness and of the
# benchmarks take long, so that each database has its turn, too.
SURFACES = {
    "benchmarks",
    "cli",
    "compat",
    "dashboard",
    "docs",
    "integrations",
    "observe",
    "prove",
    "testing",
}

# A machine that is busy makes inputs slowly, and that is nobody's fault.
settings.register_profile("suite", suppress_health_check=[HealthCheck.too_slow], deadline=None)
settings.load_profile("suite")


class Servers:
    """The servers that the tests of one process share, each started when first asked for."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._postgres: dict[str, PostgresEndpoint] = {}
        self._pgbouncer: PgBouncer | None = None
        self._redis: RedisEndpoint | None = None
        self._templates: dict[str, str] = {}
        self._files: dict[bool, Path] = {}

    def postgres(self, name: str) -> PostgresEndpoint:
        """Give the PostgreSQL of a kind; skips the test if it cannot run here."""
        kind = kind_or_skip(name)
        if name not in self._postgres:
            self._postgres[name] = self._start(kind)
        return self._postgres[name]

    def pgbouncer(self) -> PgBouncer:
        """Give the PgBouncer; skips the test if it cannot run here."""
        kind = kind_or_skip("pgbouncer")
        if self._pgbouncer is None:
            assert kind.binaries is not None
            assert BEHIND_PGBOUNCER is not None
            server = self.postgres(BEHIND_PGBOUNCER.name)
            self._pgbouncer = self._open.enter_context(PgBouncer(server, kind.binaries))
        return self._pgbouncer

    def redis(self) -> RedisEndpoint:
        """Give the Redis; skips the test if it cannot run here."""
        kind = kind_or_skip("redis")
        if self._redis is None:
            self._redis = (
                RedisEndpoint(os.environ[REDIS_URL_VARIABLE])
                if kind.binaries is None
                else self._open.enter_context(RedisServer(kind.binaries))
            )
        return self._redis

    def template(self, name: str) -> str:
        """Name a database with duly's tables: copies of it need not be set up one by one."""
        if name == "pgbouncer":
            assert BEHIND_PGBOUNCER is not None
            name = BEHIND_PGBOUNCER.name
        if name not in self._templates:
            server = self.postgres(name)
            url = server.create_database()
            self._open.callback(server.drop_database, url)
            open_store(url).close()
            self._templates[name] = database_of(url)
        return self._templates[name]

    def sqlite_template(self, *, is_own: bool) -> Path:
        """Return a file with duly's tables, of duly's own or of an application's."""
        if is_own not in self._files:
            folder = self._open.enter_context(TemporaryDirectory(prefix="duly-template-"))
            file = Path(folder) / "template.db"
            if not is_own:
                _create_application_file(file)
            open_store(f"sqlite:///{file}").close()
            self._files[is_own] = file
        return self._files[is_own]

    def close(self) -> None:
        """Stop them all."""
        self._open.close()

    def _start(self, kind: StoreKind) -> PostgresEndpoint:
        if kind.binaries is None:
            return PostgresEndpoint(os.environ[POSTGRES_URL_VARIABLE])
        return self._open.enter_context(PostgresServer(kind.binaries))


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    """No faultpoint stays armed after its test, whatever became of that."""
    yield
    faultpoints.disarm()


@pytest.fixture(autouse=True)
def _garbage_collector() -> Iterator[None]:
    """A supervisor that ran inside a test leaves its thresholds behind; restore the test's own."""
    before = gc.get_threshold()
    yield
    if gc.get_threshold() != before:
        gc.set_threshold(*before)


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """The shared servers of this test process."""
    with closing(Servers()) as servers:
        yield servers


@pytest.fixture
def store_url(
    store_kind: str, tmp_path: Path, servers: Servers, request: pytest.FixtureRequest
) -> Iterator[str]:
    """The URL of a fresh store of each kind; what it names is gone after the test."""
    is_untouched = request.node.get_closest_marker("untouched") is not None
    match store_kind:
        case "sqlite-wal" | "sqlite-rollback":
            is_own = store_kind == "sqlite-wal"
            file = tmp_path / ("duly.db" if is_own else "application.db")
            if not is_untouched:
                shutil.copyfile(servers.sqlite_template(is_own=is_own), file)
                file.chmod(0o600)
            elif not is_own:
                _create_application_file(file)
            yield f"sqlite:///{file}"
        case _:
            shared = (
                servers.pgbouncer() if store_kind == "pgbouncer" else servers.postgres(store_kind)
            )
            template = "template0" if is_untouched else servers.template(store_kind)
            url = shared.create_database(template=template)
            yield url
            shared.drop_database(url)


@pytest.fixture
def harness(store_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The harness of an application without tasks, whose time the test moves."""
    app = Duly("sqlite:///never-opened.db")
    with closing(Harness(app, fresh_store(store_kind, tmp_path, request))) as harness:
        yield harness


@pytest.fixture
def postgres_server(postgres_kind: str, servers: Servers) -> PostgresEndpoint:
    """The shared PostgreSQL of each version: for databases of one's own, not for stopping it."""
    return servers.postgres(postgres_kind)


@pytest.fixture
def private_postgres(postgres_kind: str) -> Iterator[PostgresServer]:
    """A PostgreSQL of the test's own, of each version: it may be stopped, killed and restarted."""
    kind = kind_or_skip(postgres_kind)
    if kind.binaries is None:
        pytest.skip(f"{POSTGRES_URL_VARIABLE} names a server that is not ours to stop")
    with PostgresServer(kind.binaries) as server:
        yield server


@pytest.fixture
def pgbouncer(servers: Servers) -> PgBouncer:
    """The shared PgBouncer, in front of the newest PostgreSQL found."""
    return servers.pgbouncer()


@pytest.fixture
def redis_url(servers: Servers) -> str:
    """The URL of an empty database of the shared Redis."""
    return servers.redis().empty_database()


@pytest.fixture
def private_redis() -> Iterator[RedisServer]:
    """A Redis of the test's own: it may be killed, restarted, filled and flushed."""
    kind = kind_or_skip("redis")
    if kind.binaries is None:
        pytest.skip(f"{REDIS_URL_VARIABLE} names a server that is not ours to stop")
    with RedisServer(kind.binaries) as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    """Report what ran on what, from the process that sees all reports, and who left what open."""
    config.pluginmanager.register(Unclosed())
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        config.pluginmanager.register(WhatRan(KINDS, config.rootpath / SUMMARY_FILE))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the selected tests so that all test processes end at about the same time.

    Each process begins with its share of the long tests: begun last, one of them would keep all
    others waiting. The tests with a browser follow each other, so that one browser serves them all.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    browsing, others = _parted(items, _drives_a_browser)
    long, short = _parted(others, _takes_long)
    short = browsing + short
    size = -(-len(short) // processes)
    items.clear()
    for place in range(processes):
        items += long[place::processes] + short[place * size : (place + 1) * size]


def _parted(
    items: list[pytest.Item], is_wanted: Callable[[pytest.Item], bool]
) -> tuple[list[pytest.Item], list[pytest.Item]]:
    parts: tuple[list[pytest.Item], list[pytest.Item]] = ([], [])
    for item in items:
        parts[not is_wanted(item)].append(item)
    return parts


def _drives_a_browser(item: pytest.Item) -> bool:
    return item.get_closest_marker("browser") is not None


def _takes_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("timeout") is not None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep all that is collected out of the garbage collector's way: it stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once per kind, unless it names its kinds by parametrize itself."""
    for argument, kinds in (("store_kind", STORE_KINDS), ("postgres_kind", POSTGRES_KINDS)):
        if argument in metafunc.fixturenames and not _is_parametrized(metafunc, argument):
            wanted = _kinds_wanted(metafunc, kinds)
            if "conformance" not in metafunc.definition.path.parts:
                is_oldest = OLDEST_POSTGRES and argument == "store_kind"
                wanted = one_of_each_database(wanted, newest=not is_oldest)
            metafunc.parametrize(argument, wanted)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Close the browser before a test without one: that may want an event loop of its own."""
    if "chromium" not in getattr(item, "fixturenames", ()):
        close_open()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Write on every test which store it runs on, for the closing table and for selecting it."""
    folders = item.path.relative_to(TESTS).parts[:-1]
    if set(folders[:1]) & SURFACES:
        item.add_marker("surface")
    if "django" in folders:
        item.add_marker("django")
    if not isinstance(item, pytest.Function):
        return
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    names = {
        str(parameters[name]) for name in ("store_kind", "postgres_kind") if name in parameters
    }
    if "pgbouncer" in item.fixturenames:
        names.add("pgbouncer")
    if {"redis_url", "private_redis"} & set(item.fixturenames):
        names.add("redis")
    if "browser" in item.fixturenames:
        names.add("chromium")
    if any(name.startswith(("postgres", "pgbouncer")) for name in names):
        item.add_marker("on_postgres")
    item.user_properties.extend((STORE_PROPERTY, name) for name in sorted(names))


def _kinds_wanted(metafunc: pytest.Metafunc, kinds: tuple[str, ...]) -> list[str]:
    marker = metafunc.definition.get_closest_marker("stores")
    wanted = [name for name in kinds if marker is None or name.startswith(marker.args)]
    is_for_postgres = marker is None or any(name.startswith("postgres") for name in wanted)
    is_for_pgbouncer = metafunc.definition.get_closest_marker("pgbouncer") is not None
    is_for_it_alone = marker is not None and "pgbouncer" in marker.args
    if ((is_for_pgbouncer and is_for_postgres) or is_for_it_alone) and kinds is STORE_KINDS:
        wanted.append("pgbouncer")
    if metafunc.definition.get_closest_marker("redis") and marker is None:
        wanted.append("redis")
    return wanted


def _is_parametrized(metafunc: pytest.Metafunc, argument: str) -> bool:
    markers = metafunc.definition.iter_markers("parametrize")
    return any(argument in marker.args[0] for marker in markers)


def _create_application_file(file: Path) -> None:
    """Create the file that an application already has: a table of its own, a rollback journal."""
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE application_data (id INTEGER PRIMARY KEY, note TEXT)")
        connection.execute("INSERT INTO application_data (note) VALUES ('here before duly')")
