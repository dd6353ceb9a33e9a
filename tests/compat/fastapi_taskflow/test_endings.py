"""Managers whose applications do not start or end normally."""

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

pytestmark = pytest.mark.stores("sqlite-wal")  # The behaviour does not depend on the store.

SOON = 20.0


def live_workers(manager: TaskManager) -> list[str]:
    return [each.id for each in manager.duly.workers.list() if each.state == "live"]


def lifespan_of(manager: TaskManager, inner=None):
    app = FastAPI(lifespan=inner)
    manager.init_app(app)
    return app.router.lifespan_context(app)


def test_a_forced_exit_does_not_wait_for_the_grace_period(manager_of):
    """As after a second SIGINT to uvicorn: the loop ends while the application runs."""
    manager = manager_of(process_shutdown_timeout=600.0)
    manager._worker |= {"lease": 1.5, "beat": 0.5}
    began, may_continue = threading.Event(), threading.Event()

    @manager.task(name="stubborn", persist=True, requeue_on_interrupt=True)
    def stubborn() -> None:
        began.set()
        may_continue.wait(SOON)

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
        may_continue.set()

    assert took < SOON / 2
    wait_until(lambda: live_workers(manager) == [], seconds=SOON, what="the worker has ended")


def test_an_application_whose_lifespan_failed_at_the_start_can_be_started_again(manager):
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


def test_a_startup_that_is_cancelled_midway_leaves_no_worker(manager):
    is_starting, may_continue = threading.Event(), threading.Event()

    @manager.task(name="one")
    def one() -> int:
        return 1

    def hold() -> None:
        faultpoints.disarm()
        is_starting.set()
        may_continue.wait(SOON)

    async def main() -> None:
        starting = asyncio.create_task(manager.startup())
        await asyncio.to_thread(is_starting.wait, SOON)
        starting.cancel()
        with suppress(asyncio.CancelledError):
            await starting
        may_continue.set()

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


def test_tasks_can_be_added_while_all_threads_of_the_loop_are_busy(manager):
    may_continue = threading.Event()

    @manager.task(name="one")
    async def one() -> int:
        return 1

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with lifespan_of(manager):
            busy = asyncio.create_task(asyncio.to_thread(may_continue.wait, SOON))
            await asyncio.sleep(0)
            tasks = ManagedBackgroundTasks(manager)
            try:
                return await asyncio.wait_for(tasks.aadd_task(one), SOON / 4)
            finally:
                may_continue.set()
                await busy

    assert manager.duly.runs.get(asyncio.run(main())).record.task.endswith("one")


def test_a_request_that_is_cancelled_while_it_adds_leaves_a_complete_task_or_none(manager):
    is_adding, may_continue = threading.Event(), threading.Event()

    @manager.task(name="one")
    async def one() -> int:
        return 1

    def hold() -> None:
        faultpoints.disarm()
        is_adding.set()
        may_continue.wait(SOON)

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
            may_continue.set()
            task_id = await ManagedBackgroundTasks(manager).aadd_task(one, idempotency_key="k")
            run = manager.duly.runs.get(task_id)
            assert await asyncio.to_thread(run.result, timeout=SOON) == 1

    asyncio.run(main())
    assert len(manager.duly.runs.list()) == 1
