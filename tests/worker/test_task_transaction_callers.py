"""Who a body's open transaction belongs to: what joins it, and who is told not to wait for it."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

import duly
from duly import BadOption, Duly, current
from duly.errors import WouldBlockItself
from duly.guard import Guard
from tests.worker.application_table import rows, write


@pytest.fixture
def second(store_url: str) -> Iterator[Duly]:
    """Another application on the same store."""
    app = Duly(store_url)
    app.runs.list()
    yield app
    app.close()


@pytest.fixture
def guard(store_url: str) -> Iterator[Guard]:
    """A guard in the same store."""
    guard = Guard(store_url, lease=60)
    guard.look("any")
    yield guard
    guard.close()


def refusal_of(act: Callable[[], object]) -> str:
    """Return what is said to who may not do something."""
    try:
        act()
    except (WouldBlockItself, BadOption) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.stores("sqlite")  # PostgreSQL has many writers: there is nothing to wait for.
class TestTheSameFile:
    """A body in whose way its own transaction is learns of it at once, whoever asks for it."""

    @pytest.mark.parametrize("how", ["another app", "guard", "async guard", "opening", "lock"])
    def test_is_not_waited_for(self, app, tables, second, guard, store_url, how):
        @second.task(name="other")
        def other() -> None: ...

        def enter() -> None:
            with guard.once("invoice"):
                pass

        async def aenter() -> None:
            async with guard.once("invoice"):
                pass

        async def alock() -> None:
            async with app.lock("till"):
                pass

        acts: dict[str, Callable[[], object]] = {
            "another app": other.enqueue,
            "guard": enter,
            "async guard": lambda: asyncio.run(aenter()),
            "opening": Duly(store_url).runs.list,
            "lock": lambda: asyncio.run(alock()),
        }

        @app.task(name="pay", transaction=True)
        def pay() -> str:
            write()
            return refusal_of(acts[how])

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        said = run.result(timeout=5)
        assert said.startswith("WouldBlockItself")
        assert "using(connection=" in said
        assert rows(tables) == [(run.id, 1)]
        assert second.runs.list(task=other) == []
        assert guard.look("invoice") is None

    def test_the_end_of_a_key_is_not_tried_again_and_again(self, app, tables, guard):
        @app.task(name="pay", transaction=True)
        def pay() -> None:
            with guard.once("invoice") as claim:
                write()
                claim.done()

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        assert "WouldBlockItself" in str(run.refresh().record.error)
        assert rows(tables) == []

    def test_other_callers_of_the_process_just_wait(self, app, tables, second, guard):
        @second.task(name="other")
        def other() -> None: ...

        begun: list[threading.Thread] = []

        def begin(act: Callable[[], object]) -> None:
            began = threading.Event()
            thread = threading.Thread(target=lambda: (began.set(), act()))
            thread.start()
            assert began.wait(20)
            begun.append(thread)

        def enter() -> None:
            with guard.once("invoice"):
                pass

        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            for act in (other.enqueue, enter):
                begin(act)
            begun[0].join(0.2)

        run = pay.enqueue()
        with app.worker():
            run.result(timeout=30)
        for thread in begun:
            thread.join(30)

        assert rows(tables) == [(run.id, 1)]
        assert len(second.runs.list(task=other)) == 1
        assert guard.look("invoice").state == "done"


class TestOtherThreadsOfTheBody:
    """A thread that the body started with its context can neither join nor go around."""

    @pytest.mark.parametrize("what", ["enqueue", "send_event", "step"])
    def test_are_told_so(self, app, tables, what):
        @app.task(name="other")
        def other() -> None: ...

        acts: dict[str, Callable[[], object]] = {
            "enqueue": other.enqueue,
            "send_event": lambda: app.send_event("paid"),
            "step": lambda: duly.step("apart", int),
        }

        @app.task(name="pay", transaction=True)
        def pay() -> str:
            write()
            return asyncio.run(asyncio.to_thread(refusal_of, acts[what]))  # type: ignore[arg-type]

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        said = run.result(timeout=5)
        assert said.startswith("WouldBlockItself")
        assert "using(connection=" in said
        assert rows(tables) == [(run.id, 1)]
        assert app.runs.list(task=other) == []
        assert app.send_event("paid")
        assert run.steps() == []


class TestJoiningFromAnEventLoop:
    """A body may run an event loop of its own, on its thread."""

    @pytest.mark.parametrize("fails", [False, True])
    def test_what_is_written_there_is_a_part_of_it(self, app, tables, fails):
        @app.task(name="other")
        def other() -> None: ...

        async def work() -> None:
            await other.aenqueue()
            assert await app.asend_event("paid", 1)
            assert await duly.astep("count", len, "abc") == 3

        @app.task(name="pay", transaction=True)
        def pay() -> None:
            write()
            asyncio.run(work())
            if fails:
                raise OSError("no")

        run = pay.enqueue()
        app.worker(queues="default").drain(timeout=30)

        assert run.refresh().state == ("failed" if fails else "succeeded")
        assert len(rows(tables)) == (0 if fails else 1)
        assert len(app.runs.list(task=other)) == (0 if fails else 1)
        assert app.send_event("paid", 2) is fails
        assert [step.name for step in run.steps()] == ([] if fails else ["count"])


class TestWhatCannotBeAPart:
    """What has to be durable before the transaction is, or ends it, is refused in it."""

    @pytest.mark.parametrize("what", ["hold", "sleep", "wait_for", "gather", "asleep"])
    def test_is_refused_alike_on_all_databases(self, app, tables, what):
        @app.task(name="other")
        def other() -> None: ...

        acts: dict[str, Callable[[], object]] = {
            "hold": lambda: duly.step("charge", int, on_crash="hold"),
            "sleep": lambda: duly.sleep("night", 60),
            "wait_for": lambda: duly.wait_for("paid"),
            "gather": lambda: duly.gather([other.call()]),
            "asleep": lambda: asyncio.run(duly.asleep("night", 60)),  # type: ignore[arg-type]
        }

        @app.task(name="pay")
        def pay() -> str:
            with current().transaction():
                write()
                return refusal_of(acts[what])

        run = pay.enqueue()
        app.worker().drain(timeout=30)

        said = run.result(timeout=5)
        assert said.startswith("BadOption")
        assert "before" in said
        assert rows(tables) == [(run.id, 1)]
        assert app.runs.list(task=other) == []
        assert run.steps() == []

    def test_what_is_on_record_is_passed_over(self, app, tables):
        @app.task(name="pay")
        def pay() -> str:
            def sleep_and_charge() -> str:
                duly.sleep("night", 0.01)
                return duly.step("charge", str, "ch", on_crash="hold")

            if current().fence < 3:
                sleep_and_charge()
                raise duly.Snooze(0)
            with current().transaction():
                write()
                return sleep_and_charge()

        run = pay.enqueue()
        with app.worker():
            assert run.result(timeout=30) == "ch"

        assert len(rows(tables)) == 1
