"""Bodies on the event loop: begun one after the other, each with a task of its own."""

import asyncio
import queue
import sys
import threading
import time

import pytest

from duly import Duly
from duly.app import define
from duly.clock import monotonic
from duly.core.outcome import Cancelled
from duly.worker.inflight import LOOP, THREAD, InFlightClaims
from duly.worker.runners import event_loop
from duly.worker.start_marks import StartMarks
from duly.worker.update_buffer import UpdateBuffer
from tests.worker.claims import claim

pytestmark = pytest.mark.stores("sqlite-wal")  # No matter of the store's.


def test_a_body_that_waits_does_not_keep_others_from_beginning(app: Duly):
    opened = threading.Event()

    @app.task(name="wait_for_the_door")
    async def wait_for_the_door() -> str:
        while not opened.is_set():  # noqa: ASYNC110 - another body opens it, on whatever loop
            await asyncio.sleep(0.01)
        return "in"

    @app.task(name="open_the_door")
    async def open_the_door() -> None:
        opened.set()

    first = [wait_for_the_door.enqueue() for _ in range(5)]
    open_the_door.enqueue()
    with app.worker():
        assert [run.result(timeout=20) for run in first] == ["in"] * 5


def test_no_more_bodies_wait_at_once_than_the_limit_says(app: Duly):
    inside, most = 0, 0

    @app.task(name="visit")
    async def visit() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1

    runs = app.enqueue_many(visit.call() for _ in range(40))
    with app.worker(async_limit=7):
        for run in runs:
            run.result(timeout=20)

    assert most == 7


def test_every_body_that_waits_has_a_task_of_its_own(app: Duly):
    tasks: list[object] = []

    @app.task(name="note")
    async def note() -> None:
        before = asyncio.current_task()
        await asyncio.sleep(0)
        assert asyncio.current_task() is before
        tasks.append(before)

    runs = app.enqueue_many(note.call() for _ in range(10))
    with app.worker():
        for run in runs:
            run.result(timeout=20)

    assert len(set(map(id, tasks))) == 10


def test_a_body_that_cancels_its_own_task_cancels_no_other(app: Duly):
    @app.task(name="cancel_myself")
    async def cancel_myself() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        return "returned all the same"

    @app.task(name="wait_a_little")
    async def wait_a_little() -> str:
        await asyncio.sleep(0.01)
        return "not cancelled"

    runs = app.enqueue_many(
        call for _ in range(5) for call in (cancel_myself.call(), wait_a_little.call())
    )
    with app.worker():
        found = [run.result(timeout=20) for run in runs]

    assert found == ["returned all the same", "not cancelled"] * 5


def test_timeouts_and_groups_of_asyncio_work_inside_a_body(app: Duly):
    @app.task(name="use_them")
    async def use_them() -> list[str]:
        said = []
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            said.append("timed out")
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0.001))
        said.append("grouped")
        try:
            await asyncio.wait_for(asyncio.sleep(30), 0.01)
        except TimeoutError:
            said.append("waited")
        return said

    run = use_them.enqueue()
    with app.worker():
        assert run.result(timeout=20) == ["timed out", "grouped", "waited"]


def test_bodies_that_never_wait_let_the_loop_turn_in_between(app: Duly, monkeypatch):
    monkeypatch.setattr(event_loop, "_SLICE_SECONDS", 0.005)

    @app.task(name="block")
    async def block() -> None:
        time.sleep(0.002)  # noqa: ASYNC251 - as careless bodies do

    runs = app.enqueue_many(block.call() for _ in range(200))

    async def count_turns() -> int:
        turns = 0
        loop = asyncio.get_running_loop()
        with app.worker(loop=loop):
            while runs[-1].refresh().state != "succeeded":
                await asyncio.sleep(0)
                turns += 1
        return turns

    assert asyncio.run(count_turns()) > 20


def test_a_cancel_that_comes_before_the_start_is_heeded(tmp_path):
    ran, reported = [], queue.SimpleQueue()

    async def body() -> None:
        ran.append(True)

    slots = StartMarks(tmp_path / "w.slots", create=10)
    slots.deadline = monotonic() + 1000
    hand = InFlightClaims(slots, {LOOP: 5, THREAD: 5}, 5)
    journal = UpdateBuffer(None, lambda _claim: False)
    runner = event_loop.EventLoopRunner(
        hand, lambda ended, **_: reported.put(ended), journal, limit=5
    )
    runner.start()
    (held,) = hand.take([(claim(lane="loop"), define(body, name="body"))])
    held.cancel = "requested"

    runner.submit([held])

    ((_, outcome, _),) = reported.get(timeout=20)
    runner.stop()
    slots.close()
    assert isinstance(outcome, Cancelled)
    assert ran == []


@pytest.mark.skipif(sys.version_info < (3, 12), reason="3.11 has no eager tasks")
def test_bodies_run_beside_each_other_where_tasks_begin_eagerly(app: Duly):
    @app.task(name="child")
    async def child() -> int:
        await asyncio.sleep(0)
        return 1

    @app.task(name="parent")
    async def parent() -> int:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        await asyncio.sleep(0)
        return await child.enqueue().aresult(timeout=20)

    with app.worker(async_limit=4):
        runs = [parent.enqueue() for _ in range(2)]
        assert [run.result(timeout=20) for run in runs] == [1, 1]
