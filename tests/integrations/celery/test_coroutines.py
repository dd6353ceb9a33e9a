"""Celery tasks that are coroutines, in this process: time limits, loops that run, inheritance."""

import asyncio
import pickle
import signal
import threading
from collections.abc import Iterator
from contextlib import closing

import celery
import pytest
from celery.exceptions import SoftTimeLimitExceeded
from celery.states import FAILURE

from duly.guard import Guard
from duly.integrations.celery import IdempotentTask, LoopIsRunning

FOREVER = 60


@pytest.fixture
def guard(tmp_path) -> Iterator[Guard]:
    """Yield a guard on SQLite. Nothing in this file depends on the ledger."""
    with closing(Guard(f"sqlite:///{tmp_path / 'guard.db'}", lease=60)) as guard:
        yield guard


@pytest.fixture
def app(guard) -> celery.Celery:
    """Return an application whose tasks are run by `apply`."""
    app = celery.Celery("loops", broker="memory://", backend="cache+memory://")
    app.conf.duly_guard_database = guard
    return app


def made(app: celery.Celery, function, **options):
    """Make a task from a function."""
    return app.task(function, base=IdempotentTask, name=function.__name__, shared=False, **options)


# -- soft time limits --


@pytest.fixture
def strike() -> Iterator[object]:
    """Raise the limit as a worker does: by a signal, while the loop waits."""

    def exceed(*_signal: object) -> None:
        raise SoftTimeLimitExceeded

    def kill() -> None:
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, exceed)
    timers = []

    def strike_soon() -> None:
        timers.append(threading.Timer(0.1, kill))
        timers[-1].start()

    yield strike_soon
    for timer in timers:
        timer.join()
    signal.signal(signal.SIGUSR1, before)


def test_a_coroutine_can_catch_its_soft_time_limit(app, guard, strike):
    async def tidy_up(number: int) -> str:
        strike()
        try:
            await asyncio.sleep(FOREVER)
        except SoftTimeLimitExceeded as limit:
            await asyncio.sleep(0.01)
            told.append(pickle.loads(pickle.dumps(limit)))  # noqa: S301 - our own
            told.append(asyncio.current_task().cancelling())
            return "cleaned"

    told = []
    task = made(app, tidy_up)

    assert [task.apply((1,)).get() for _ in range(2)] == ["cleaned"] * 2
    limit, cancelling = told
    assert isinstance(limit, SoftTimeLimitExceeded)
    assert cancelling == 0
    assert guard.letters.list() == []


def test_a_soft_time_limit_that_a_coroutine_does_not_catch_is_its_error(app, guard, strike):
    async def sleep(number: int) -> None:
        strike()
        await asyncio.sleep(FOREVER)

    result = made(app, sleep).apply((1,))

    assert (result.state, type(result.result)) == (FAILURE, SoftTimeLimitExceeded)
    assert "await asyncio.sleep(FOREVER)" in result.traceback
    (letter,) = guard.letters.list()
    assert letter.error.startswith(f"{SoftTimeLimitExceeded.__module__}.SoftTimeLimitExceeded")
    assert guard.look(letter.key).state == "failed"


async def in_a_group(child) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(child)


async def in_a_group_that_is_open(child) -> None:
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(child)
            await asyncio.sleep(FOREVER)
    except ExceptionGroup as errors:  # As for every error inside a task group.
        (limit,) = errors.exceptions
        raise limit from None


async def in_time(child) -> None:
    await asyncio.wait_for(child, FOREVER)


@pytest.mark.parametrize(
    "wait", [in_a_group, in_a_group_that_is_open, in_time, asyncio.gather], ids=lambda w: w.__name__
)
def test_an_awaited_coroutine_has_ended_when_its_caller_gets_the_time_limit(app, strike, wait):
    seen = []

    async def child() -> None:
        strike()
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append("cancelled")
            raise

    async def parent(number: int) -> str:
        try:
            await wait(child())
        except SoftTimeLimitExceeded:
            seen.append("limit")
        return "cleaned"

    assert made(app, parent).apply((1,)).get() == "cleaned"
    assert seen == ["cancelled", "limit"]


def test_a_time_limit_that_is_raised_in_a_callback_of_the_loop_fails_the_task(app):
    def exceed() -> None:
        raise SoftTimeLimitExceeded

    async def sleep(number: int) -> None:
        asyncio.get_running_loop().call_soon(exceed)
        await asyncio.sleep(FOREVER)

    result = made(app, sleep).apply((1,))

    assert (result.state, type(result.result)) == (FAILURE, SoftTimeLimitExceeded)


# -- on a loop that runs already --


@pytest.mark.filterwarnings("error:coroutine .* was never awaited")
@pytest.mark.parametrize("options", [{}, {"raise_on_duplicate": True}], ids=["plain", "unique"])
def test_an_eager_call_on_a_running_loop_is_refused_and_leaves_nothing(app, guard, options):
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def call(task):
        return task.delay("ann")

    async def call_apart(task):
        return await asyncio.to_thread(task.delay, "ann")

    app.conf.task_always_eager = True
    task = made(app, greet, **options)

    refused = [asyncio.run(call(task)) for _ in range(2)]

    assert [type(result.result) for result in refused] == [LoopIsRunning] * 2
    assert "asyncio.to_thread" in str(refused[0].result)
    assert guard.letters.list() == []
    assert guard.look(task.key_for(("ann",), {})) is None
    assert asyncio.run(call_apart(task)).get() == "hello ann"


# -- inheritance --


def test_a_subclass_is_a_coroutine_task_only_if_its_own_run_is_a_coroutine(app, guard):
    class Waiting(IdempotentTask):
        name = "waiting"

        async def run(self, name: str) -> str:
            await asyncio.sleep(0)
            return f"{self.name} {name}"

    class Plain(Waiting):
        name = "plain"

        def run(self, name: str) -> str:
            return f"plainly {name}"

    class Same(Waiting):
        name = "same"

    class Longer(Waiting):
        name = "longer"

        async def run(self, name: str) -> str:
            return f"{await super().run(name)} and on"

    waiting, plain, same, longer = (
        app.register_task(kind()) for kind in (Waiting, Plain, Same, Longer)
    )

    assert plain("ann") == plain.apply(("ann",)).get() == "plainly ann"
    for task, result in [
        (waiting, "waiting ann"),
        (same, "same ann"),
        (longer, "longer ann and on"),
    ]:
        assert asyncio.run(task("ann")) == task.apply(("ann",)).get() == result
