"""Timeouts end what can be ended, and a claim is released only when its body has ended."""

import asyncio
import ctypes
import threading
import time
from pathlib import Path

import pytest

from duly import Duly, Retry, RunInterrupted, current
from duly.events import RunOverdue
from tests.servers.processes import is_running, wait_until
from tests.strikes import Strike

pytestmark = pytest.mark.surface


def outcomes(run) -> list[str]:
    """Return how every attempt ended."""
    return [attempt.outcome for attempt in run.attempts()]


def test_a_coroutine_past_its_timeout_is_ended_at_its_await(app: Duly):
    ended = threading.Event()

    @app.task(name="slow", timeout=0.1)
    async def slow() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            ended.set()

    run = slow.enqueue()
    with app.worker():
        wait_until(lambda: run.refresh().is_final, seconds=20, what="it times out")

    assert ended.is_set()
    assert (run.state, run.cause) == ("failed", "timed_out")
    assert "longer than its timeout of 0.1 s" in run.record.error
    assert outcomes(run) == ["timed_out"]


def test_a_python_loop_on_a_thread_is_interrupted(app):
    ended = threading.Event()

    @app.task(name="busy", timeout=0.1)
    def busy() -> None:
        try:
            while True:
                time.sleep(0.001)
        finally:
            ended.set()

    run = busy.enqueue()
    with app.worker():
        wait_until(lambda: run.refresh().is_final, seconds=20, what="it times out")

    assert ended.is_set()
    assert (run.state, run.cause) == ("failed", "timed_out")


def test_a_thread_that_was_interrupted_runs_the_next_body_unharmed(app):
    @app.task(name="busy", timeout=0.05)
    def busy() -> None:
        while True:
            time.sleep(0.001)

    @app.task(name="sound")
    def sound() -> int:
        return sum(range(100_000))

    with app.worker(concurrency=1):
        first = [busy.enqueue() for _ in range(3)]
        second = [sound.enqueue() for _ in range(5)]
        for run in second:
            assert run.result(timeout=20) == 4999950000
        for run in first:
            wait_until(lambda run=run: run.refresh().is_final, seconds=20, what="the end")

    assert [run.cause for run in first] == ["timed_out"] * 3


def test_a_body_that_ends_just_at_its_timeout_disturbs_nobody(app):
    @app.task(name="brink", timeout=0.02)
    def brink(number: int) -> int:
        time.sleep(0.0195 + number % 3 * 0.0005)
        return number

    runs = app.enqueue_many(brink.call(n) for n in range(40))
    with app.worker(concurrency=4):
        for run in runs:
            wait_until(lambda run=run: run.refresh().is_final, seconds=20, what="the end")

    for number, run in enumerate(runs):
        assert run.state in {"succeeded", "failed"}
        if run.state == "succeeded":
            assert run.result() == number
        else:
            assert run.cause == "timed_out"


def test_what_others_declare_of_the_interpreters_functions_harms_no_body(app, monkeypatch):
    # All who use `ctypes.pythonapi` share its attributes, and so what is declared of their types.
    shared = ctypes.pythonapi.PyThreadState_SetAsyncExc
    monkeypatch.setattr(shared, "argtypes", (ctypes.c_ulong, ctypes.py_object))
    run = app.task(lambda: 42, name="answer").enqueue()

    app.worker().drain(timeout=5)

    assert run.result(timeout=1) == 42


@pytest.mark.parametrize("timeout", [None, 0.1])
def test_the_interpreter_looks_for_no_exception_after_a_body_has_ended(app, timeout):
    # As long as it does, every call in the process costs more, and it hangs where a trace raises.
    @app.task(name="spin", timeout=timeout)
    def spin() -> None:
        while timeout is not None:
            pass

    spin.enqueue()
    app.worker().drain(timeout=20)

    strike = Strike(0, __file__)
    struck = threading.Thread(target=strike.call, args=(lambda: outcomes(None),), daemon=True)
    struck.start()
    struck.join(5)
    assert not struck.is_alive()
    assert strike.has_struck


def test_a_timeout_uses_a_retry(app):
    @app.task(name="slow_at_first", timeout=0.1, retries=Retry(1, base=0.0))
    async def slow_at_first() -> str:
        if current().attempt == 1:
            await asyncio.sleep(600)
        return "in time"

    run = slow_at_first.enqueue()
    with app.worker():
        assert run.result(timeout=20) == "in time"

    assert outcomes(run) == ["timed_out", "returned"]
    assert (run.record.attempt, run.record.retries_used) == (2, 1)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_hold_task_that_timed_out_is_interrupted(app, kind):
    if kind == "def":

        @app.task(name="charge", timeout=0.1, on_crash="hold")
        def charge() -> None:
            while True:
                time.sleep(0.001)
    else:

        @app.task(name="charge", timeout=0.1, on_crash="hold")
        async def charge() -> None:
            await asyncio.sleep(600)

    with app.worker(), pytest.raises(RunInterrupted) as caught:
        charge.enqueue().result(timeout=20)

    assert caught.value.cause == "timed_out"


def test_a_thread_that_cannot_be_interrupted_keeps_its_run_until_it_returns(app):
    events = []
    app.bus.subscribe(events.append)
    go_on = threading.Event()

    @app.task(name="deaf", timeout=0.05, retries=Retry(1, base=0.0))
    def deaf() -> int:
        if current().attempt == 1:
            go_on.wait(30)  # One long call: no exception reaches it.
        return current().attempt

    run = deaf.enqueue()
    with app.worker(concurrency=2):
        wait_until(
            lambda: any(isinstance(event, RunOverdue) for event in events),
            seconds=20,
            what="it is told overdue",
        )
        assert run.refresh().state == "running"
        assert run.record.attempt == 1
        go_on.set()
        assert run.result(timeout=20) in {1, 2}

    assert [event.run_id for event in events if isinstance(event, RunOverdue)] == [run.id]


def test_a_body_without_a_timeout_may_take_its_time(app):
    @app.task(name="slow")
    def slow() -> None:
        assert current().deadline is None
        time.sleep(0.3)

    run = slow.enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().state == "succeeded"


def test_a_timeout_error_of_the_bodys_own_is_an_error_like_any_other(app):
    @app.task(name="fetch", timeout=30)
    async def fetch() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(600)

    run = fetch.enqueue()
    app.worker().drain(timeout=20)

    assert (run.refresh().state, run.cause) == ("failed", "raised")
    assert run.record.error.startswith("TimeoutError")


@pytest.mark.stores("sqlite-wal", "postgres")
def test_a_subprocess_past_its_timeout_is_killed(shop, tmp_path: Path):
    started = tmp_path / "started"
    run = shop.process_stuck.enqueue(str(started))
    with shop.app.worker(concurrency=1):
        wait_until(lambda: run.refresh().is_final, seconds=40, what="it times out")
    assert (run.state, run.cause) == ("failed", "timed_out")
    # It may have been killed before its body's first word on a slow machine.
    if started.exists():
        assert not is_running(int(started.read_text()))
