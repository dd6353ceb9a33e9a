"""Managers whose applications start or end otherwise than they should."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly import faultpoints
from duly.compat.fastapi_taskflow import ManagedBackgroundTasks, TaskManager
from duly.compat.fastapi_taskflow.enqueue import ManagerNotStarted
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("sqlite-wal")  # No matter of the store's.

SOON = 20.0


def live_workers(manager: TaskManager) -> list[str]:
    return [each.id for each in manager.duly.workers.list() if each.state == "live"]


def lifespan_of(manager: TaskManager, inner=None):
    app = FastAPI(lifespan=inner)
    manager.init_app(app)
    return app.router.lifespan_context(app)


def test_a_forced_exit_waits_for_no_grace(manager_of):
    """As when uvicorn gets a second SIGINT: the loop ends under the application."""
    manager = manager_of(process_shutdown_timeout=600.0)
    manager._worker |= {"lease": 1.5, "beat": 0.5}
    began, goes_on = threading.Event(), threading.Event()

    @manager.task(name="stubborn", persist=True, requeue_on_interrupt=True)
    def stubborn() -> None:
        began.set()
        goes_on.wait(SOON)

    async def serve(started: asyncio.Event) -> None:
        async with lifespan_of(manager):
            adding(manager).add_task(stubborn)
            started.set()
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        started = asyncio.Event()
        serving = asyncio.create_task(serve(started))
        await started.wait()
        await asyncio.to_thread(began.wait, SOON)
        assert not serving.done()

    before = time.monotonic()
    try:
        asyncio.run(main())
        took = time.monotonic() - before
    finally:
        goes_on.set()

    assert took < SOON / 2
    wait_until(lambda: live_workers(manager) == [], seconds=SOON, what="the worker has ended")


def test_an_own_lifespan_that_fails_at_the_start_leaves_nothing_and_the_next_start_works(manager):
    fails = [True, False]

    @manager.task(name="one")
    async def one() -> int:
        return 1

    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[None]:
        if fails.pop(0):
            raise RuntimeError("no such database")
        yield

    app = FastAPI(lifespan=inner)
    manager.init_app(app)
    with pytest.raises(RuntimeError, match="no such database"), TestClient(app):
        pass
    with pytest.raises(ManagerNotStarted):
        adding(manager).add_task(one)
    with TestClient(app):
        task_id = adding(manager).add_task(one)
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == 1
    assert live_workers(manager) == []


def test_a_startup_that_is_cancelled_half_way_leaves_no_worker(manager):
    is_starting, goes_on = threading.Event(), threading.Event()

    @manager.task(name="one")
    def one() -> int:
        return 1

    def hold() -> None:
        faultpoints.disarm()
        is_starting.set()
        goes_on.wait(SOON)

    async def main() -> None:
        starting = asyncio.create_task(manager.startup())
        await asyncio.to_thread(is_starting.wait, SOON)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        goes_on.set()

    manager.duly.runs.list()
    faultpoints.arm("operate.before_write", hold)
    asyncio.run(main())

    wait_until(
        lambda: manager.duly.workers.list() != [] and live_workers(manager) == [],
        seconds=SOON,
        what="the worker that had begun has ended",
    )
    with serving(manager):
        task_id = adding(manager).add_task(one)
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == 1


def test_tasks_are_added_though_bodies_keep_the_threads_of_the_loop_busy(manager):
    goes_on = threading.Event()

    @manager.task(name="one")
    async def one() -> int:
        return 1

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with lifespan_of(manager):
            busy = asyncio.create_task(asyncio.to_thread(goes_on.wait, SOON))
            await asyncio.sleep(0)
            tasks = ManagedBackgroundTasks(manager)
            try:
                return await asyncio.wait_for(tasks.aadd_task(one), SOON / 4)
            finally:
                goes_on.set()
                await busy

    assert manager.duly.runs.get(asyncio.run(main())).record.task.endswith("one")


def test_a_request_that_is_cancelled_as_it_adds_leaves_a_whole_task_or_none(manager):
    is_adding, goes_on = threading.Event(), threading.Event()

    @manager.task(name="one")
    async def one() -> int:
        return 1

    def hold() -> None:
        faultpoints.disarm()
        is_adding.set()
        goes_on.wait(SOON)

    async def main() -> None:
        async with lifespan_of(manager):
            faultpoints.arm("enqueue.before_write", hold)
            adding_one = asyncio.create_task(
                ManagedBackgroundTasks(manager).aadd_task(one, idempotency_key="k")
            )
            await asyncio.to_thread(is_adding.wait, SOON)
            adding_one.cancel()
            with suppress(asyncio.CancelledError):
                await adding_one
            goes_on.set()
            task_id = await ManagedBackgroundTasks(manager).aadd_task(one, idempotency_key="k")
            run = manager.duly.runs.get(task_id)
            assert await asyncio.to_thread(run.result, timeout=SOON) == 1

    asyncio.run(main())
    assert len(manager.duly.runs.list()) == 1
