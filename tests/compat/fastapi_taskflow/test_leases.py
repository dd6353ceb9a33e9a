"""A live process that others have declared dead: the tasks that it accepts must not be lost."""

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
"""On SQLite all processes are on one machine, where a live process is always recognized."""


@pytest.fixture
def pair(manager_of) -> Iterator[tuple[TaskManager, TaskManager]]:
    """Yield two running managers, as on two machines."""
    first, second = manager_of(), manager_of()
    for manager in (first, second):
        manager._worker |= LEASE
    with serving(first), serving(second):
        yield first, second


@contextmanager
def declared_dead(victim: TaskManager, other: TaskManager) -> Iterator[None]:
    """Block the heartbeats of a process until others consider it dead."""
    worker = victim._serving.worker
    before, may_continue = worker.worker_id, threading.Event()

    def hold() -> None:
        if threading.current_thread() is worker._keepalive._thread:
            may_continue.wait(SOON)

    faultpoints.arm("beat.before_write", hold)
    try:
        wait_until(
            lambda: before not in other.duly.store.heartbeats().read(),
            seconds=SOON,
            what="the worker is considered dead",
        )
        yield
    finally:
        faultpoints.disarm()
        may_continue.set()


def test_a_task_accepted_after_a_lost_lease_belongs_to_the_new_worker_id(pair):
    first, second = pair
    ran = []

    @first.task(name="one")
    def one() -> None:
        ran.append(1)

    before = first._serving.worker.worker_id
    first.duly.queues.pause("default")
    with ThreadPoolExecutor(1) as pool:
        with declared_dead(first, second):
            accepted: Future[str] = pool.submit(adding(first).add_task, one)
            with pytest.raises(TimeoutError):
                accepted.result(timeout=0.1)
        run = first.duly.runs.get(accepted.result(timeout=SOON))

    accepter = AcceptingProcess.read(json.loads(run.record.tags)[ACCEPTER_TAG])
    assert accepter.worker_id != before
    # Another machine sees that it is alive.
    assert not accepter._replace(place="other-boot/pid:[1]").is_gone(second.duly.store)
    first.duly.queues.resume("default")
    run.result(timeout=SOON)
    assert ran == [1]


def test_a_persisted_task_is_accepted_without_a_lease(pair):
    first, second = pair

    @first.task(name="one", persist=True)
    def one() -> int:
        return 1

    with declared_dead(first, second):
        task_id = adding(first).add_task(one)
    assert first.duly.runs.get(task_id).result(timeout=SOON) == 1


def test_a_process_that_cannot_renew_its_lease_raises_and_accepts_nothing(pair, monkeypatch):
    first, second = pair

    @first.task(name="one")
    def one() -> None: ...

    monkeypatch.setattr(enqueue, "ADDING_LEASE_SECONDS", 0.1)
    with declared_dead(first, second), pytest.raises(StoreUnavailable, match="not accepted"):
        adding(first).add_task(one)

    assert first.duly.runs.list() == []


@pytest.mark.timing
def test_an_event_loop_is_not_blocked_while_the_lease_is_lost(pair):
    first, second = pair

    @first.task(name="one")
    def one() -> None: ...

    async def endpoint() -> None:
        adding(first).add_task(one)

    with declared_dead(first, second):
        began = monotonic()
        with pytest.raises(StoreUnavailable, match="await aadd_task"):
            asyncio.run(endpoint())
        assert monotonic() - began < 1
    assert first.duly.runs.list() == []


def test_a_process_whose_worker_has_ended_accepts_nothing(pair):
    """As in the moment between the end of the worker and the end of its application."""
    first, _ = pair

    @first.task(name="one")
    def one() -> None: ...

    first._serving.worker.stop()
    with pytest.raises(ManagerNotStarted):
        adding(first).add_task(one)
    assert first.duly.runs.list() == []
