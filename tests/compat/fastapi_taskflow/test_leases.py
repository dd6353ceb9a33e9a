"""A process that others have called dead though it lives: what it accepts is not to end with it."""

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from duly import faultpoints
from duly.clock import monotonic
from duly.compat.fastapi_taskflow import TaskManager, enqueue
from duly.compat.fastapi_taskflow.admission import ACCEPTER_TAG, AcceptingProcess
from duly.compat.fastapi_taskflow.enqueue import ManagerNotStarted
from duly.errors import StoreUnavailable
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

SOON = 20.0
LEASE = {"lease": 0.9, "beat": 0.3}

pytestmark = pytest.mark.stores("postgres")
"""On SQLite all are on one machine, and know for certain who lives."""


@pytest.fixture
def pair(manager_of) -> Iterator[tuple[TaskManager, TaskManager]]:
    """Two managers that serve, as on two machines."""
    first, second = manager_of(), manager_of()
    for manager in (first, second):
        manager._worker |= LEASE
    with serving(first), serving(second):
        yield first, second


@contextmanager
def called_dead(victim: TaskManager, other: TaskManager) -> Iterator[None]:
    """Keep a process from saying that it lives, until others believe that it does not."""
    worker = victim._serving.worker
    before, goes_on = worker.worker_id, threading.Event()

    def hold() -> None:
        if threading.current_thread() is worker._keepalive._thread:
            goes_on.wait(SOON)

    faultpoints.arm("beat.before_write", hold)
    try:
        wait_until(
            lambda: before not in other.duly.store.heartbeats().read(),
            seconds=SOON,
            what="it is dead",
        )
        yield
    finally:
        faultpoints.disarm()
        goes_on.set()


def test_what_it_accepts_then_bears_its_next_name(pair):
    first, second = pair
    ran = []

    @first.task(name="one")
    def one() -> None:
        ran.append(1)

    before = first._serving.worker.worker_id
    first.duly.queues.pause("default")
    with ThreadPoolExecutor(1) as pool:
        with called_dead(first, second):
            accepted: Future[str] = pool.submit(adding(first).add_task, one)
            with pytest.raises(TimeoutError):
                accepted.result(timeout=0.1)
        run = first.duly.runs.get(accepted.result(timeout=SOON))

    accepter = AcceptingProcess.read(json.loads(run.record.tags)[ACCEPTER_TAG])
    assert accepter.worker_id != before
    # And another machine sees that it lives.
    assert not accepter._replace(place="other-boot/pid:[1]").is_gone(second.duly.store)
    first.duly.queues.resume("default")
    run.result(timeout=SOON)
    assert ran == [1]


def test_what_belongs_to_no_process_is_accepted_all_the_same(pair):
    first, second = pair

    @first.task(name="one", persist=True)
    def one() -> int:
        return 1

    with called_dead(first, second):
        task_id = adding(first).add_task(one)
    assert first.duly.runs.get(task_id).result(timeout=SOON) == 1


def test_one_that_finds_no_way_back_says_so_and_accepts_nothing(pair, monkeypatch):
    first, second = pair

    @first.task(name="one")
    def one() -> None: ...

    monkeypatch.setattr(enqueue, "ADDING_LEASE_SECONDS", 0.1)
    with called_dead(first, second), pytest.raises(StoreUnavailable, match="not accepted"):
        adding(first).add_task(one)

    assert first.duly.runs.list() == []


@pytest.mark.timing
def test_an_event_loop_waits_for_none_of_that(pair):
    first, second = pair

    @first.task(name="one")
    def one() -> None: ...

    async def endpoint() -> None:
        adding(first).add_task(one)

    with called_dead(first, second):
        began = monotonic()
        with pytest.raises(StoreUnavailable, match="await aadd_task"):
            asyncio.run(endpoint())
        assert monotonic() - began < 1
    assert first.duly.runs.list() == []


def test_one_whose_worker_has_ended_accepts_nothing(pair):
    """As in the moment between the end of the worker and that of its application."""
    first, _ = pair

    @first.task(name="one")
    def one() -> None: ...

    first._serving.worker.stop()
    with pytest.raises(ManagerNotStarted):
        adding(first).add_task(one)
    assert first.duly.runs.list() == []
