"""How many PostgreSQL sessions a worker has: nothing that is added may need another one."""

import os
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duly import Duly, current
from duly.store.postgres import store as postgres_store
from tests.worker import shop as shop_module
from tests.worker.trees import Tree

pytestmark = pytest.mark.stores("postgres")
SOON = 20.0
BODIES = 2
"""How many a worker runs at the same time."""
WRITING = 4
"""Enqueues, claims, ends of runs, and the rest: they overlap."""
HINTS = 2
"""One that listens, and one that notifies."""
BEATS = 1
KEYED = 1
"""Keyed enqueues, events and renewals of locks wait for what callers hold."""
READING = 1
"""Four at most; the tests let all threads of a process share one, so that no load adds another."""
MOST_READERS, MOST_SECTIONS = postgres_store.READERS, postgres_store.MAX_TASK_TRANSACTIONS
_PORTS = """
SELECT client_port FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@pytest.fixture(autouse=True)
def _one_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "READERS", READING)


@pytest.fixture
def watcher(store_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that looks at the others."""
    with closing(psycopg.connect(store_url, autocommit=True)) as connection:
        yield connection


def sessions_of(pid: int, watcher: psycopg.Connection[Any]) -> int:
    """Return how many sessions a process has; none of them ends while it rests."""
    return len(ports_of(pid) & {port for (port,) in watcher.execute(_PORTS)})


def ports_of(pid: int) -> set[int]:
    """Return the local ports of the connections of a process."""
    links = [_SOCKET.match(link) for link in links_of(pid)]
    inodes = {match[1] for match in links if match is not None}
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[9] in inodes}


def links_of(pid: int) -> list[str]:
    """Return what the descriptors of a process are."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        # It may have been closed meanwhile.
        with suppress(FileNotFoundError):
            found.append(str(link.readlink()))
    return found


def test_an_embedded_worker_has_few_sessions(app: Duly, watcher):
    @app.task(name="quick")
    def quick(number: int) -> int:
        return number

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        current().connection.execute("SELECT 1")

    with app.worker(concurrency=BODIES):
        for run in [quick.enqueue(number) for number in range(20)]:
            run.result(timeout=SOON)
        assert len(app.runs.list()) == 20
        plain = sessions_of(os.getpid(), watcher)
        for number in range(3):
            quick.using(key=f"k{number}").enqueue(number).result(timeout=SOON)
        keyed = sessions_of(os.getpid(), watcher)
        for _ in range(3):
            pay.enqueue().result(timeout=SOON)
        transactional = sessions_of(os.getpid(), watcher)

    assert 0 < plain <= WRITING + HINTS + BEATS + READING
    assert keyed <= plain + KEYED
    # A body may begin before the session of the last one is given back.
    assert transactional <= plain + KEYED + BODIES


@pytest.mark.process
def test_a_worker_process_and_its_supervisor_have_few_sessions(watcher, store_url, tmp_path):
    shop_module.app.use_url(store_url)
    app = "tests.worker.one_reader:app"
    try:
        with Tree(store_url, tmp_path, app=app, processes=1, concurrency=BODIES).ready() as tree:
            (child,) = tree.children()
            calls = [shop_module.quick.call(number) for number in range(20)]
            for run in shop_module.app.enqueue_many(calls):
                run.result(timeout=SOON)
            of_child = sessions_of(child, watcher)
            of_keeper = sessions_of(tree.keeper.pid, watcher)
    finally:
        shop_module.app.close()

    # No body enqueues there, so that nothing is notified either.
    assert 0 < of_child <= WRITING - 1 + HINTS - 1 + BEATS + READING
    assert 0 < of_keeper <= BEATS + 1


def test_a_process_reads_on_four_sessions_and_lends_sixteen_to_bodies():
    assert (MOST_READERS, MOST_SECTIONS) == (4, 16)
