"""How many PostgreSQL connections each kind of process has, under load and at rest."""

import os
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly import Duly, current
from duly.store.postgres import floors, pool
from tests.servers.processes import wait_until
from tests.worker import shop as shop_module
from tests.worker.trees import Tree

pytestmark = pytest.mark.stores("postgres")
SOON = 20.0
BODIES = 2
"""How many a worker runs at the same time."""

CHILD = 4
"""Work, claim, settle and listen."""
SUPERVISOR = 1
"""Heartbeats."""
EMBEDDED = CHILD + SUPERVISOR
ENQUEUER = 1
"""Work."""
READ = 1
"""A thread that reads borrows a connection."""

_PORTS = """
SELECT client_port FROM pg_stat_activity
 WHERE datname = current_database() AND application_name <> 'watcher'
"""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@pytest.fixture(autouse=True)
def _without_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look for floors borrows a connection for a moment."""
    monkeypatch.setattr(floors, "SLOW_SECONDS", 3600.0)


@pytest.fixture
def watcher(store_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that looks at the others."""
    with watching(store_url) as connection:
        yield connection


def watching(url: str) -> closing[psycopg.Connection[Any]]:
    """Open a connection that does not count."""
    return closing(psycopg.connect(url, autocommit=True, application_name="watcher"))


def sessions_of(pid: int, watcher: psycopg.Connection[Any]) -> int:
    """Return how many sessions a process has on the server."""
    return len(ports_of(pid).keys() & {port for (port,) in watcher.execute(_PORTS)})


def ports_of(pid: int) -> dict[int, int]:
    """Return the local ports of the connections of a process, each with the other end's."""
    links = [_SOCKET.match(link) for link in links_of(pid)]
    inodes = {match[1] for match in links if match is not None}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {_port(line[1]): _port(line[2]) for line in lines if line[9] in inodes}


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def links_of(pid: int) -> list[str]:
    """Return the targets of the descriptors of a process."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # It may have been closed meanwhile.
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


class Counts:
    """The numbers of sessions of a process, counted again and again."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid = pid
        self._url = url
        self._over = threading.Event()
        self.most = 0

    @contextmanager
    def counting(self) -> Iterator["Counts"]:
        """Count until the block ends."""
        thread = threading.Thread(target=self._count)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _count(self) -> None:
        with watching(self._url) as connection:
            is_over = False
            while not is_over:
                is_over = self._over.wait(0.02)
                self.most = max(self.most, sessions_of(self._pid, connection))


def wait_until_at_rest(pid: int, watcher: psycopg.Connection[Any], sessions: int) -> None:
    """Wait until connections that are no longer used are closed."""
    wait_until(
        lambda: sessions_of(pid, watcher) <= sessions,
        seconds=pool.IDLE_SECONDS + SOON,
        what=f"the process has {sessions} connections, not {sessions_of(pid, watcher)}",
    )


def test_an_embedded_worker_has_five_connections(app: Duly, watcher, store_url):
    @app.task(name="quick")
    def quick(number: int) -> int:
        return number

    with app.worker(concurrency=BODIES), Counts(os.getpid(), store_url).counting() as counts:
        runs = [quick.enqueue(number) for number in range(20)]
        runs += [quick.using(key=f"k{number}").enqueue(number) for number in range(3)]
        for number, run in enumerate(runs):
            app.send_event(f"e{number}", number)
            run.result(timeout=SOON)
        most = counts.most
        wait_until_at_rest(os.getpid(), watcher, EMBEDDED)

    # The thread of this test reads the results.
    assert 0 < most <= EMBEDDED + READ


def test_each_open_transaction_of_a_body_has_a_connection_until_it_is_idle(app: Duly, watcher):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        current().connection.execute("SELECT 1")

    with app.worker(concurrency=BODIES):
        for _ in range(3):
            pay.enqueue().result(timeout=SOON)
        # A body may begin before the session of the last one is returned.
        assert sessions_of(os.getpid(), watcher) <= EMBEDDED + READ + BODIES
        wait_until_at_rest(os.getpid(), watcher, EMBEDDED)


@pytest.mark.process
def test_a_worker_process_has_four_connections_and_its_supervisor_one(watcher, store_url, tmp_path):
    shop_module.app.use_url(store_url)
    try:
        app = "tests.worker.without_floors:app"
        with Tree(store_url, tmp_path, app=app, processes=1, concurrency=BODIES).ready() as tree:
            (child,) = tree.children()
            keeper = tree.keeper.pid
            wait_until_at_rest(child, watcher, CHILD)
            with Counts(child, store_url).counting() as counts:
                calls = [shop_module.quick.call(number) for number in range(200)]
                for run in shop_module.app.enqueue_many(calls):
                    run.result(timeout=SOON)
            wait_until_at_rest(keeper, watcher, SUPERVISOR)
            wait_until_at_rest(child, watcher, CHILD)
            tree.kill(child)
            wait_until(
                lambda: tree.children() not in ([], [child]), seconds=SOON, what="a new child"
            )
            wait_until_at_rest(keeper, watcher, SUPERVISOR)
    finally:
        shop_module.app.close()

    assert 0 < counts.most <= CHILD


def test_a_process_that_enqueues_has_one_connection(app: Duly, watcher, store_url):
    @app.task(name="quick")
    def quick(number: int) -> int:
        return number

    quick.enqueue(0)
    assert len(app.runs.list()) == 1
    assert sessions_of(os.getpid(), watcher) <= ENQUEUER + READ
    wait_until_at_rest(os.getpid(), watcher, ENQUEUER)
    with Counts(os.getpid(), store_url).counting() as counts:
        threads = [
            threading.Thread(target=lambda: [quick.enqueue(number) for number in range(20)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for number in range(5):
            quick.using(key=f"k{number}").enqueue(number)
            app.send_event(f"e{number}", number)
        for thread in threads:
            thread.join()

    assert counts.most == ENQUEUER


@pytest.mark.process
@pytest.mark.long
@pytest.mark.timeout(300)
def test_twenty_worker_processes_fit_next_to_an_application_on_a_server_of_default_size(
    private_postgres, tmp_path
):
    private_postgres.stop()
    private_postgres._settings["max_connections"] = "100"
    private_postgres.start()
    url = private_postgres.create_database()
    shop_module.app.use_url(url)
    most = 0
    try:
        with ExitStack() as stack:
            for _ in range(10):
                stack.enter_context(watching(url))
            connection = stack.enter_context(watching(url))
            trees = [
                stack.enter_context(
                    Tree(
                        url,
                        tmp_path,
                        app="tests.worker.without_floors:app",
                        processes=10,
                        lease=60.0,
                        beat=5.0,
                    )
                )
                for _ in range(2)
            ]
            for tree in trees:
                tree.ready()
            calls = [shop_module.quick.call(number) for number in range(2_000)]
            runs = shop_module.app.enqueue_many(calls)
            processes = [pid for tree in trees for pid in (tree.keeper.pid, *tree.children())]
            is_over = False
            while not is_over:
                is_over = not shop_module.app.runs.list(state=("queued", "running"), limit=1)
                ports = {port for (port,) in connection.execute(_PORTS)}
                most = max(most, sum(len(ports_of(pid).keys() & ports) for pid in processes))
            assert {run.refresh().state for run in runs} == {"succeeded"}
            for tree in trees:
                wait_until_at_rest(tree.keeper.pid, connection, SUPERVISOR)
            logs = "".join(tree.log.read_text() for tree in trees)
    finally:
        shop_module.app.close()

    assert "too many clients" not in private_postgres.log.read_text() + logs
    assert 0 < most <= 2 * (SUPERVISOR + 1) + 20 * CHILD


def test_a_worker_behind_a_pooler_has_no_connection_for_notifications(pgbouncer, servers):
    url = pgbouncer.create_database(template=servers.template("pgbouncer"))
    pooled = Duly(url)

    def clients() -> int:
        return list(ports_of(os.getpid()).values()).count(pgbouncer.port)

    @pooled.task(name="quick")
    def quick() -> None:
        pass

    others = clients()
    try:
        with pooled.worker(concurrency=BODIES):
            quick.enqueue().result(timeout=SOON)
            wait_until(
                lambda: clients() <= others + EMBEDDED - 1,
                seconds=pool.IDLE_SECONDS + SOON,
                what="the worker has the connections to the pooler that it needs",
            )
    finally:
        pooled.close()
        pgbouncer.drop_database(url)
