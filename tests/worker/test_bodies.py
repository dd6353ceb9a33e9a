"""Bodies of every kind: def, async def and in a subprocess; what they get and what they give."""

import asyncio
import contextvars
import os
import threading
import uuid
from collections import Counter
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pytest

from duly import Duly, current
from duly.errors import NoCurrentRun
from tests.servers.processes import wait_until

pytestmark = pytest.mark.surface

VALUES = {
    "none": None,
    "texts": ["", "plain", "ünï ☃ 😀", "line\nbreak\ttab"],
    "numbers": [0, -1, 2**63 - 1, -(2**63), 1.5, -0.0, 1e300],
    "flags": [True, False],
    "nested": {"a": [{"b": [1, None]}], "$tag": "like ours"},
    "tuple and set": (1, ("two", {3, 4})),
    "instants": [datetime(2030, 1, 2, 3, 4, 5, 6, tzinfo=UTC), date(2030, 1, 2)],
    "spans": [timedelta(0, 7, 8), timedelta(-1)],
    "naive": datetime(2030, 1, 2),  # noqa: DTZ001 - it must come back as naive
    "exact": [Decimal("1.10"), uuid.UUID(int=5), b"\x00\xff bytes"],
}


def test_results_of_every_type_come_back_as_they_were(app: Duly):
    @app.task(name="plain")
    def plain(value):
        return value

    @app.task(name="coroutine")
    async def coroutine(value):
        await asyncio.sleep(0)
        return value

    runs = {
        (kind, task.name): task.enqueue(value)
        for kind, value in VALUES.items()
        for task in (plain, coroutine)
    }
    app.worker().drain(timeout=30)

    for (kind, name), run in runs.items():
        found = run.result(timeout=5)
        assert (found, type(found)) == (VALUES[kind], type(VALUES[kind])), (kind, name)


def test_a_body_in_a_subprocess_gets_and_gives_typed_values(shop):
    when, who = datetime(2030, 1, 2, 3, 4, tzinfo=UTC), uuid.uuid4()
    typed = shop.typed.enqueue(when, Decimal("0.10"), who)
    plain = shop.in_process.enqueue(VALUES["nested"])
    coroutine = shop.in_process_async.enqueue(21)

    shop.app.worker(concurrency=2).drain(timeout=50)

    assert typed.result(timeout=5) == {"when": when, "amount": Decimal("0.10"), "who": who}
    seen = plain.result(timeout=5)
    assert seen == {"value": VALUES["nested"], "pid": seen["pid"], "run": plain.id, "attempt": 1}
    assert seen["pid"] != os.getpid()
    assert [line.message for line in plain.logs()] == [f"seen in {seen['pid']}"]
    assert coroutine.result(timeout=5) == 42


@pytest.mark.stores("sqlite-wal")
def test_subprocesses_are_used_again_and_end_with_their_worker(shop):
    with shop.app.worker(concurrency=1):
        pids = {shop.in_process.enqueue(n).result(timeout=30)["pid"] for n in range(3)}
        (pid,) = pids
        assert os.path.exists(f"/proc/{pid}")  # noqa: PTH110 - a process, not a file

    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_body_knows_its_run(app):
    seen = {}

    @app.task(name="shop:send", timeout=30, queue="mail")
    def send() -> None:
        context = current()
        seen.update(
            run_id=context.run_id,
            task=context.task,
            queue=context.queue,
            attempt=context.attempt,
            generation=context.generation,
            fence=context.fence,
            tags=context.tags,
            deadline=context.deadline,
        )

    run = send.using(tags={"tenant": "x"}).enqueue()
    app.worker().drain(timeout=20)

    deadline = seen.pop("deadline")
    assert isinstance(deadline, float)
    assert seen == {
        "run_id": run.id,
        "task": "shop:send",
        "queue": "mail",
        "attempt": 1,
        "generation": 1,
        "fence": 1,
        "tags": {"tenant": "x"},
    }


def test_outside_a_body_there_is_no_current_run():
    with pytest.raises(NoCurrentRun, match="inside a task that a worker runs"):
        current()


def test_after_a_body_its_thread_has_no_current_run(app):
    threads = []

    @app.task(name="first")
    def first() -> None:
        threads.append(threading.current_thread())

    first.enqueue()
    app.worker(concurrency=1).drain(timeout=20)

    assert [thread.name.startswith("duly-run") for thread in threads] == [True]
    with pytest.raises(NoCurrentRun):
        contextvars.copy_context().run(current)


def test_hundreds_of_runs_are_each_run_once(app):
    seen: Counter[int] = Counter()

    @app.task(name="plain")
    def plain(number: int) -> int:
        seen[number] += 1
        return number

    @app.task(name="coroutine")
    async def coroutine(number: int) -> int:
        seen[number] += 1
        return number

    calls = [plain.call(n) if n % 2 else coroutine.call(n) for n in range(600)]
    runs = app.enqueue_many(calls)
    app.worker().drain(timeout=40)

    assert set(seen.values()) == {1}
    assert len(seen) == 600
    assert [run.result(timeout=5) for run in runs] == list(range(600))


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_context_variables_are_not_shared_between_runs(app, kind):
    flavour = contextvars.ContextVar("flavour", default="plain")
    seen: list[str] = []

    def body(number: int) -> None:
        seen.append(flavour.get())
        flavour.set(f"of {number}")

    if kind == "def":

        @app.task(name="taste")
        def taste(number: int) -> None:
            body(number)
    else:

        @app.task(name="taste")
        async def taste(number: int) -> None:
            body(number)

    app.enqueue_many(taste.call(n) for n in range(150))
    app.worker(concurrency=1, async_limit=2).drain(timeout=20)

    assert seen == ["plain"] * 150


@pytest.mark.stores("sqlite-wal")
def test_context_variables_are_not_shared_between_runs_of_a_subprocess(shop):
    with shop.app.worker(concurrency=1):
        seen = [shop.process_flavour.enqueue(f"of {n}").result(timeout=30) for n in range(3)]

    assert seen == ["plain"] * 3


@pytest.mark.stores("sqlite-wal")
def test_a_thread_that_a_body_left_in_a_subprocess_says_nothing_for_the_next_body(shop):
    with shop.app.worker(concurrency=1):
        before = shop.process_leaves_thread.enqueue().result(timeout=60)
        run = shop.process_lets_thread_speak.enqueue()
        assert run.result(timeout=60) == before, "both ran in one subprocess"

    assert [line.message for line in run.logs()] == ["of this body"]
    assert run.refresh().record.progress is None


def test_coroutines_run_on_the_applications_own_loop_if_it_is_given(app):
    @app.task(name="where")
    async def where() -> int:
        return id(asyncio.get_running_loop())

    async def main() -> tuple[int, int]:
        loop = asyncio.get_running_loop()
        with app.worker(loop=loop) as worker:
            run = await where.aenqueue()
            found = await run.aresult(timeout=20)
            # Leaving waits for bodies that need this very loop, so it must not hold the loop.
            await asyncio.to_thread(worker.stop)
        return found, id(loop)

    found, expected = asyncio.run(main())
    assert found == expected


def test_a_result_that_cannot_be_stored_fails_the_run_and_says_so(app):
    @app.task(name="odd", retries=3)
    def odd() -> object:
        return object()

    @app.task(name="large")
    def large() -> str:
        return "x" * (1024 * 1024)

    runs = [odd.enqueue(), large.enqueue()]
    app.worker().drain(timeout=20)

    for run in runs:
        assert (run.refresh().state, run.cause) == ("failed", "unencodable_result")
        assert run.record.attempt == 1
        assert "return value" in run.record.error


def test_a_task_defined_while_a_worker_runs_is_known_soon(app):
    with app.worker():

        @app.task(name="late:comer")
        async def late() -> str:
            return "here"

        run = late.enqueue()
        assert run.result(timeout=20) == "here"
        wait_until(
            lambda: "late:comer" in app.workers.list()[0].tasks, seconds=20, what="it is known"
        )
