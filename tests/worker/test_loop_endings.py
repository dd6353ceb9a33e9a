"""A worker on the application's own loop, and a loop that ends before it was stopped."""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextvars import copy_context
from typing import Any

import pytest

from duly import Duly, Run
from duly.worker.embedded_worker import EmbeddedWorker
from duly.worker.runners.event_loop import _resume_body
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("sqlite-wal")  # No matter of the store's.

SOON = 20.0
Leave = Callable[[Coroutine[Any, Any, None]], None]


def end_with_asyncio_run(main: Coroutine[Any, Any, None]) -> None:
    """End the loop as most programs do: every task that is left is cancelled."""
    asyncio.run(main)


def close_the_loop(main: Coroutine[Any, Any, None]) -> None:
    """End the loop as careless programs do: what waits there waits for ever."""
    loop = asyncio.new_event_loop()
    loop.run_until_complete(main)
    loop.close()


def live_workers(app: Duly) -> list[str]:
    """Return the ids of the workers that the store calls live."""
    return [worker.id for worker in app.workers.list() if worker.state == "live"]


LEAVINGS = pytest.mark.parametrize("leave", [end_with_asyncio_run, close_the_loop])


def leave_at_work(app: Duly, leave: Leave, began: threading.Event, **settings: Any) -> None:
    """Start a worker on a loop that ends when a body has begun; nobody stops the worker."""

    async def main() -> None:
        app.worker(loop=asyncio.get_running_loop(), **settings).start()
        await asyncio.to_thread(began.wait, SOON)

    leave(main())
    wait_until(lambda: live_workers(app) == [], seconds=SOON, what="the worker ends by itself")


@LEAVINGS
def test_bodies_that_end_with_their_loop_run_again_elsewhere(app: Duly, leave: Leave):
    began, attempts = threading.Event(), []

    @app.task(name="patient")
    async def patient() -> str:
        attempts.append(1)
        began.set()
        await asyncio.sleep(0 if len(attempts) > 1 else 600)
        return "done"

    run = patient.enqueue()
    leave_at_work(app, leave, began)
    state = run.refresh().state
    with app.worker():
        assert run.result(timeout=SOON) == "done"

    assert state == "queued"
    assert [each.outcome for each in run.refresh().attempts()] == ["stopped", "returned"]


@LEAVINGS
def test_a_hold_body_that_ends_with_its_loop_waits_for_a_person(app: Duly, leave: Leave):
    began = threading.Event()

    @app.task(name="charge", on_crash="hold")
    async def charge() -> None:
        began.set()
        await asyncio.sleep(600)

    run = charge.enqueue()
    leave_at_work(app, leave, began)

    assert (run.refresh().state, run.record.cause) == ("interrupted", "stopped")


@LEAVINGS
def test_a_thread_that_outlives_the_loop_keeps_its_run_to_its_end(app: Duly, leave: Leave):
    began, goes_on = threading.Event(), threading.Event()

    @app.task(name="plain")
    def plain() -> str:
        began.set()
        goes_on.wait(SOON)
        return "done"

    async def main() -> None:
        app.worker(loop=asyncio.get_running_loop()).start()
        await asyncio.to_thread(began.wait, SOON)

    run = plain.enqueue()
    leave(main())
    goes_on.set()

    assert run.result(timeout=SOON) == "done"
    wait_until(lambda: live_workers(app) == [], seconds=SOON, what="the worker ends by itself")
    assert [each.outcome for each in run.refresh().attempts()] == ["returned"]


def test_claims_that_come_when_the_loop_is_gone_are_given_back(app: Duly):
    @app.task(name="one")
    async def one() -> int:
        return 1

    async def main() -> EmbeddedWorker:
        return app.worker(loop=asyncio.get_running_loop()).start()

    worker = asyncio.run(main())
    run = one.enqueue()
    wait_until(lambda: live_workers(app) == [], seconds=SOON, what="the worker ends by itself")
    worker.stop()

    assert run.refresh().state == "queued"
    with app.worker():
        assert run.result(timeout=SOON) == 1
    assert [each.outcome for each in run.refresh().attempts()] == ["returned"]


def test_a_body_that_cancels_itself_has_failed_though_the_loop_goes_on(app: Duly):
    @app.task(name="unhappy")
    async def unhappy() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(600)

    async def main() -> None:
        worker = app.worker(loop=asyncio.get_running_loop()).start()
        await asyncio.to_thread(ended, run)
        await asyncio.to_thread(worker.stop)

    def ended(run: Run[None]) -> None:
        wait_until(lambda: run.refresh().state == "failed", seconds=SOON, what="it has failed")

    run = unhappy.enqueue()
    asyncio.run(main())


def test_a_stopped_worker_leaves_nothing_on_the_loop(app: Duly):
    async def main() -> None:
        worker = app.worker(loop=asyncio.get_running_loop()).start()
        await asyncio.to_thread(worker.stop)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())


def test_a_body_may_be_removed_from_memory_before_what_goes_on_with_it():
    async def body() -> None:
        await Waiting()

    left = body()
    context = copy_context()
    rest = _resume_body(left, context, context.run(left.send, None), os.getpid())
    rest.send(None)

    left.close()
    rest.close()

    assert inspect.getcoroutinestate(left) == inspect.CORO_CLOSED


class Waiting:
    """Something that never comes."""

    def __await__(self) -> Iterator[None]:
        yield None
