"""Applications that do not end normally: cut off, cancelled, or failing as they end."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress

import pytest
from fastapi import FastAPI

from duly import Duly, faultpoints
from duly.integrations.fastapi import duly_lifespan
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("sqlite-wal")  # The behaviour does not depend on the store.

SOON = 20.0


@pytest.fixture
def duly(store_url):
    with closing(Duly(store_url)) as duly:
        yield duly


def live_workers(duly: Duly) -> list[str]:
    """Return the ids of the workers that are live according to the store."""
    return [worker.id for worker in duly.workers.list() if worker.state == "live"]


def serve_until(event: threading.Event, lifespan) -> None:
    """Serve an application whose server is forced to exit: the loop is stopped."""

    async def serve(started: asyncio.Event) -> None:
        async with lifespan(FastAPI()):
            started.set()
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        started = asyncio.Event()
        serving = asyncio.create_task(serve(started))
        await started.wait()
        await asyncio.to_thread(event.wait, SOON)
        assert not serving.done()

    asyncio.run(main())


def test_a_forced_exit_requeues_async_runs_without_a_grace_period(duly):
    began = threading.Event()
    said = []

    @duly.task(name="patient")
    async def patient() -> None:
        began.set()
        await asyncio.sleep(600)

    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            said.append("pool closes")

    run = patient.enqueue()
    before = time.monotonic()
    serve_until(began, duly_lifespan(duly, inner=inner, grace=600))

    assert time.monotonic() - before < SOON
    assert said == ["pool closes"]
    assert live_workers(duly) == []
    assert run.refresh().state == "queued"
    assert [each.outcome for each in run.attempts()] == ["stopped"]


def test_a_forced_exit_does_not_wait_for_threads(duly):
    began, may_continue = threading.Event(), threading.Event()

    @duly.task(name="stubborn")
    def stubborn() -> str:
        began.set()
        may_continue.wait(SOON)
        return "done"

    run = stubborn.enqueue()
    serve_until(began, duly_lifespan(duly, grace=600, lease=3, beat=1))
    state = run.refresh().state
    may_continue.set()

    # If the program continued, the thread would end, and so would its run.
    assert state == "running"
    assert run.result(timeout=SOON) == "done"
    wait_until(lambda: live_workers(duly) == [], seconds=SOON, what="the worker has ended")


def test_a_startup_that_is_cancelled_midway_leaves_no_worker(duly):
    is_starting, may_continue = threading.Event(), threading.Event()

    def hold() -> None:
        faultpoints.disarm()
        is_starting.set()
        may_continue.wait(SOON)

    async def main() -> None:
        async def serve() -> None:
            async with duly_lifespan(duly)(FastAPI()):
                raise AssertionError("it was cancelled before")

        serving = asyncio.create_task(serve())
        await asyncio.to_thread(is_starting.wait, SOON)
        serving.cancel()
        with suppress(asyncio.CancelledError):
            await serving
        may_continue.set()

    duly.runs.list()
    faultpoints.arm("operate.before_write", hold)
    asyncio.run(main())

    wait_until(
        lambda: duly.workers.list() != [] and live_workers(duly) == [],
        seconds=SOON,
        what="the worker that had begun has ended",
    )


def test_tasks_that_keep_the_threads_of_the_loop_busy_do_not_delay_its_end(duly):
    begun, may_continue = threading.Semaphore(0), threading.Event()

    @duly.task(name="busy")
    async def busy() -> None:
        begun.release()
        await asyncio.to_thread(may_continue.wait, SOON)

    async def main() -> None:
        async with duly_lifespan(duly, grace=0.1)(FastAPI()):
            for _ in runs:
                while not begun.acquire(blocking=False):  # noqa: ASYNC110 - no thread is free
                    await asyncio.sleep(0.01)
        may_continue.set()

    runs = [busy.enqueue() for _ in range(40)]
    before = time.monotonic()
    asyncio.run(main())

    assert time.monotonic() - before < SOON / 2
    assert {run.refresh().state for run in runs} == {"queued"}


def test_the_worker_has_ended_before_a_failing_lifespan_of_the_application_ends(duly):
    seen = []

    @asynccontextmanager
    async def inner(_api: FastAPI) -> AsyncIterator[None]:
        yield
        seen.append(live_workers(duly))
        raise RuntimeError("the pool cannot be closed")

    async def main() -> None:
        async with duly_lifespan(duly, inner=inner)(FastAPI()):
            assert len(live_workers(duly)) == 1

    with pytest.raises(RuntimeError, match="cannot be closed"):
        asyncio.run(main())
    assert seen == [[]]
