"""Steps inside of steps and of gathers, and waits beside one another."""

import asyncio
import threading
import time

import pytest

import duly
from duly import Retry, current
from tests.servers.processes import wait_until

pytestmark = pytest.mark.surface

ONCE_MORE = Retry(1, base=0)


def messages(run) -> list[str]:
    """Return what a run has logged."""
    return [line.message for line in run.logs()]


class TestStepsThatArePassedOverWithTheirOuterOne:
    """They are no longer come to, and the code has them still."""

    def test_of_steps(self, app):
        done: list[str] = []

        def inner() -> None:
            duly.step("inmost", done.append, "inmost")
            duly.step("kept", done.append, "kept", on_crash="hold")

        @app.task(name="order", retries=ONCE_MORE)
        def order() -> None:
            duly.step("outer", lambda: duly.step("inner", inner))
            if current().attempt == 1:
                raise OSError("once more")

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "succeeded"
        assert done == ["inmost", "kept"]
        assert messages(run) == []

    def test_in_coroutines(self, app):
        async def inner() -> int:
            return await duly.astep("inner", int, "1") + await duly.astep(
                "written", int, "2", transaction=True
            )

        @app.task(name="order", retries=ONCE_MORE)
        async def order() -> int:
            found = await asyncio.gather(duly.astep("outer", inner), duly.astep("beside", int))
            if current().attempt == 1:
                raise OSError("once more")
            return found[0]

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=1) == 3
        assert messages(run) == []

    def test_of_a_gather(self, app):
        @app.task(name="square")
        def square(number: int) -> int:
            return number * number

        @app.task(name="total")
        def total() -> list[int]:
            return duly.gather(square.call(duly.step(f"look-{n}", int, n)) for n in range(2))

        run = total.enqueue()
        with app.worker():
            assert run.result(timeout=20) == [0, 1]

        assert messages(run) == []

    def test_one_that_the_code_no_longer_has_is_told_all_the_same(self, app):
        @app.task(name="order", retries=ONCE_MORE)
        def order() -> None:
            def outer() -> None:
                if current().attempt == 1:
                    duly.step("old", int)
                    raise OSError("once more")

            duly.step("outer", outer)

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "succeeded"
        (said,) = messages(run)
        assert said.endswith("in the code: old")


def test_a_retry_from_an_outer_step_does_what_lies_in_it_again_too(app):
    done: list[str] = []

    @app.task(name="order")
    def order() -> None:
        duly.step("before", done.append, "before")
        duly.step("outer", lambda: duly.step("charge", done.append, "charge"))

    run = order.enqueue()
    app.worker().drain(timeout=20)
    run.retry(from_step="outer")
    app.worker().drain(timeout=20)

    assert run.refresh().state == "succeeded"
    assert done == ["before", "charge", "charge"]


@pytest.mark.parametrize("kind", ["plain", "coroutine"])
def test_nothing_is_told_by_an_attempt_that_did_not_come_so_far(app, kind):
    def left() -> None:
        if current().attempt < 3:
            raise OSError("once more")

    @app.task(name="plain", retries=Retry(2, base=0))
    def plain() -> None:
        duly.step("first", int)
        if current().attempt != 2:
            duly.step("second", int)
        left()

    @app.task(name="coroutine", retries=Retry(2, base=0))
    async def coroutine() -> None:
        await duly.astep("first", int)
        if current().attempt != 2:
            await duly.astep("second", int)
        left()

    run = {"plain": plain, "coroutine": coroutine}[kind].enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().state == "succeeded"
    assert messages(run) == []


class TestStepsBesideAWait:
    """A wait leaves the body only when they have ended, so that they are done once."""

    @pytest.fixture
    def charged(self) -> list[str]:
        return []

    @pytest.fixture
    def charge(self, charged):
        async def charge(what: str = "card") -> str:
            charged.append(what)
            await asyncio.sleep(0.2)
            return what

        return charge

    @pytest.mark.parametrize("wait", ["asleep", "await_for", "agather"])
    def test_in_asyncio_gather(self, app, charge, charged, wait):
        is_awaited = threading.Event()

        @app.task(name="other")
        def other() -> None:
            is_awaited.wait(timeout=20)

        waits = {
            "asleep": lambda: duly.asleep("nap", 0.1),
            "await_for": lambda: duly.await_for("paid"),
            "agather": lambda: duly.agather([other.call()]),
        }

        @app.task(name="order")
        async def order() -> str:
            return (await asyncio.gather(waits[wait](), duly.astep("charge", charge)))[1]

        run = order.enqueue()
        with app.worker(recheck=0.2):
            wait_until(lambda: bool(run.attempts()), seconds=20, what="the body waits")
            is_awaited.set()
            app.send_event("paid", "yes")
            assert run.result(timeout=20) == "card"

        assert charged == ["card"]
        assert {attempt.outcome for attempt in run.attempts()} == {"suspended", "returned"}

    def test_in_a_task_group(self, app, charge, charged):
        @app.task(name="order")
        async def order() -> str:
            async with asyncio.TaskGroup() as group:
                group.create_task(duly.asleep("nap", 0.01))
                paid = group.create_task(duly.astep("charge", charge, on_crash="hold"))
            return paid.result()

        run = order.enqueue()
        with app.worker():
            assert run.result(timeout=20) == "card"

        assert charged == ["card"]

    def test_with_a_wait_in_each_nobody_waits_for_the_other(self, app, charge, charged):
        async def branch(name: str) -> str:
            await duly.asleep(f"nap-{name}", 0.01)
            return await duly.astep(f"charge-{name}", charge, name)

        @app.task(name="order", timeout=10)
        async def order() -> list[str]:
            return await asyncio.gather(*(duly.astep(n, branch, n) for n in ("a", "b")))

        run = order.enqueue()
        with app.worker():
            assert run.result(timeout=20) == ["a", "b"]

        assert sorted(charged) == ["a", "b"]

    def test_none_begins_once_the_body_is_left(self, app, charge, charged):
        left = threading.Event()

        async def later() -> None:
            while not left.is_set():  # noqa: ASYNC110 - set from another thread
                await asyncio.sleep(0.01)
            await duly.astep("charge", charge)

        @app.task(name="order")
        async def order() -> None:
            await asyncio.gather(duly.asleep("night", 3600), later())

        run = order.enqueue()
        with app.worker():
            while not run.attempts() or run.attempts()[0].outcome != "suspended":
                time.sleep(0.01)
            left.set()
            time.sleep(0.1)

        assert charged == []

    def test_a_wait_that_is_broken_off_meanwhile_has_not_left_the_body(self, app):
        async def fail() -> None:
            await asyncio.sleep(0.2)
            raise OSError("no")

        @app.task(name="order", retries=0)
        async def order() -> str:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(duly.asleep("night", 3600))
                    group.create_task(duly.astep("charge", fail))
            except* OSError:
                pass
            return "by invoice"

        run = order.enqueue()
        app.worker().drain(timeout=20)

        assert run.result(timeout=1) == "by invoice"


class TestWaitsBesideOneAnother:
    """Coroutines wait for several things at once; the run leaves its worker all the same."""

    def test_in_a_task_group(self, app):
        @app.task(name="remind", retries=0)
        async def remind() -> str:
            async with asyncio.TaskGroup() as group:
                group.create_task(duly.asleep("a", 0.01))
                paid = group.create_task(duly.await_for("paid"))
            return paid.result()

        run = remind.enqueue()
        with app.worker(recheck=0.2):
            assert app.send_event("paid", "yes")
            assert run.result(timeout=20) == "yes"

        assert {attempt.outcome for attempt in run.attempts()} <= {"suspended", "returned"}

    def test_with_an_error_beside_it_it_has_failed(self, app):
        async def fail() -> None:
            raise OSError("no")

        @app.task(name="remind", retries=0)
        async def remind() -> None:
            async with asyncio.TaskGroup() as group:
                group.create_task(duly.asleep("a", 60))
                group.create_task(fail())

        run = remind.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"

    @pytest.mark.parametrize("how", ["except", "gather"])
    def test_a_body_that_goes_on_without_what_it_waits_for_has_failed(self, app, how):
        @app.task(name="remind", retries=3)
        async def remind() -> str:
            if how == "gather":
                await asyncio.gather(duly.asleep("night", 60), return_exceptions=True)
            else:
                try:
                    await duly.asleep("night", 60)
                except BaseException:  # noqa: BLE001 - the mistake that is to be told
                    return "good morning"
            return "good morning"

        run = remind.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert "'night'" in str(run.record.error)
        assert "except BaseException" in str(run.record.error)

    def test_so_it_is_in_plain_functions(self, app):
        @app.task(name="remind")
        def remind() -> str:
            try:
                duly.sleep("night", 60)
            finally:
                return "good morning"  # noqa: B012 - the mistake that is to be told

        run = remind.enqueue()
        app.worker().drain(timeout=20)

        assert run.refresh().state == "failed"
        assert "'night'" in str(run.record.error)
