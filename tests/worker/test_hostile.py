"""Bodies and rows that mean harm, or merely do it: the worker goes on, and runs nothing else."""

import asyncio
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from decimal import Decimal

import pytest

import duly
from duly import Discard, Duly, Retry, current
from duly.clock import new_id
from duly.store.ops.runs import Enqueue
from duly.store.ops.upkeep import Tick
from tests.servers.processes import is_running, wait_until

pytestmark = pytest.mark.surface


class Silent(Exception):
    """An exception that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


ENDS = {
    "SystemExit": SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt(),
    "GeneratorExit": GeneratorExit(),
    "CancelledError": asyncio.CancelledError(),
    "StopIteration": StopIteration(7),
    "an exception without words": Silent(),
    "an exception with odd words": ValueError("nul \0 lone \ud800 " + "x" * 10_000),
    "an exception with an odd name": type("Odd", (Exception,), {"__qualname__": "Odd\ud800"})("x"),
    "an exception that traceback cannot format": SyntaxError("x", ("page.html", 1, 3, b"{% if")),
    "a group": BaseExceptionGroup("both", [SystemExit(1), ValueError("x")]),
    "a deep recursion": None,
}


def end_badly(how: str) -> None:
    """Raise as told."""
    error = ENDS[how]
    if error is None:
        end_badly(how)
    else:
        raise error


@pytest.fixture
def sound(app: Duly):
    """Tasks that show that the worker goes on."""

    @app.task(name="plain")
    def plain() -> str:
        return "still here"

    @app.task(name="coroutine")
    async def coroutine() -> str:
        return "still here"

    def check() -> None:
        for task in (plain, coroutine):
            assert task.enqueue().result(timeout=20) == "still here"

    return check


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_no_way_of_ending_badly_ends_the_worker(app, sound, kind):
    if kind == "def":

        @app.task(name="bad")
        def bad(how: str) -> None:
            end_badly(how)
    else:

        @app.task(name="bad")
        async def bad(how: str) -> None:
            end_badly(how)

    with app.worker(concurrency=1, async_limit=1):
        runs = {how: bad.enqueue(how) for how in ENDS}
        for how, run in runs.items():
            wait_until(lambda run=run: run.refresh().is_final, seconds=20, what=how)
        sound()

    assert {how: str(run.state) for how, run in runs.items()} == dict.fromkeys(ENDS, "failed")
    assert runs["SystemExit"].record.error == "SystemExit: 3"
    assert "cannot be shown" in runs["an exception without words"].record.error
    assert len(runs["an exception with odd words"].record.error) < 5_000


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (404, "404"),
        (KeyError("gone"), "'gone'"),
        ("caf\udce9.txt", "caf\ufffd.txt"),
        ("x" * 10_000, "xxx"),
        (Silent(), "cannot be shown"),
        (None, "discarded by its task"),
    ],
    ids=["number", "exception", "surrogate", "long", "silent", "none"],
)
def test_a_discard_may_have_any_reason(app, sound, reason, told):
    @app.task(name="discards")
    def discards() -> None:
        raise Discard(reason)

    with app.worker(concurrency=1):
        run = discards.enqueue()
        wait_until(lambda: run.refresh().is_final, seconds=20, what="it ends")
        sound()

    assert str(run.state) == "cancelled"
    assert told in run.record.error
    assert len(run.record.error) < 5_000


class Unhashable(type):
    """A kind of class that cannot be looked up."""

    __hash__ = None


class Odd(metaclass=Unhashable):
    """A value whose own class fails when it is encoded."""


@pytest.mark.parametrize("kind", ["def", "async def", "in a transaction"])
def test_a_result_whose_class_fails_ends_its_run(app, sound, kind):
    if kind == "async def":

        @app.task(name="odd")
        async def odd() -> object:
            return Odd()
    else:

        @app.task(name="odd", transaction=kind == "in a transaction")
        def odd() -> object:
            return Odd()

    with app.worker(concurrency=1, async_limit=1):
        run = odd.enqueue()
        wait_until(lambda: run.refresh().is_final, seconds=20, what="it ends")
        sound()

    assert (str(run.state), run.record.cause) == ("failed", "unencodable_result")


def test_anything_may_be_logged_and_any_number_is_progress(app):
    @app.task(name="tells")
    def tells() -> None:
        current().log.info(404)
        current().log.error(KeyError("gone"))
        current().progress(Decimal("0.5"))

    with app.worker(concurrency=1):
        run = tells.enqueue()
        run.result(timeout=20)

    # Both are written with the progress, or not at all.
    assert [line.message for line in run.logs()] == ["404", "'gone'"]


def test_a_filter_of_the_application_that_raises_costs_no_run(app, sound):
    class Failing(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:  # noqa: ARG002
            raise LookupError

    attempts = []

    @app.task(name="forgets", retries=Retry(1, base=0.0))
    def forgets() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            duly.step("once", lambda: None)
            raise ValueError
        return "done"

    failing = Failing()
    logging.getLogger("duly.run").addFilter(failing)
    try:
        with app.worker(concurrency=1):
            assert forgets.enqueue().result(timeout=20) == "done"
            sound()
    finally:
        logging.getLogger("duly.run").removeFilter(failing)


def test_a_part_of_a_coroutine_that_exits_does_not_end_the_loop(app, sound):
    async def part() -> None:
        await asyncio.sleep(0)
        sys.exit(1)

    @app.task(name="whole")
    async def whole() -> None:
        await asyncio.gather(part(), asyncio.sleep(0.01))

    @app.task(name="forgets")
    async def forgets() -> None:
        task = asyncio.create_task(part())
        await asyncio.sleep(0.05)
        task.done()

    with app.worker():
        runs = [whole.enqueue(), forgets.enqueue()]
        for run in runs:
            wait_until(lambda run=run: run.refresh().is_final, seconds=20, what="it ends")
        sound()


def test_a_retried_exit_is_retried_like_any_failure(app):
    @app.task(name="exits", retries=Retry(1, base=0.0))
    def exits() -> int:
        if current().attempt == 1:
            raise SystemExit
        return current().attempt

    with app.worker():
        assert exits.enqueue().result(timeout=20) == 2


def test_a_subscriber_that_raises_does_not_end_the_worker(app, sound, monkeypatch):
    told = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))

    def broken(event: object) -> None:
        message = f"cannot take {type(event).__name__}"
        raise RuntimeError(message)

    app.bus.subscribe(broken)
    with app.worker():
        sound()

    assert any("cannot take" in str(error) for error in told)


@pytest.mark.parametrize("lane", ["thread", "loop", "process"])
@pytest.mark.parametrize(
    "arguments",
    [
        "",
        "nonsense",
        "[[],{}] and more",
        "[[1,2,3],{}]",
        '[[],{"to":"x","cc":"y"}]',
        '{"to":"x"}',
        '[[],{"to":{"$datetime":"yesterday"}}]',
        '[[],{"to":{"$pickle":"gASVBAAAAAAAAACMAA=="}}]',
        "[[" * 5000,
        "[[],{}]",
    ],
)
@pytest.mark.stores("sqlite-wal")  # What a row may hold is the codec's matter, not the store's.
def test_arguments_that_cannot_be_read_fail_the_run_and_nothing_runs(app, lane, arguments):
    ran = threading.Event()
    executor = lane if lane == "process" else None
    if lane == "loop":

        @app.task(name="send", retries=5)
        async def send(to: str) -> None:
            ran.set()
    else:

        @app.task(name="send", retries=5, executor=executor)
        def send(to: str) -> None:
            ran.set()

    run_id = new_id()
    app.store.do(Enqueue(run_id, "send", "default", lane, 0, arguments))
    app.worker(concurrency=1).drain(timeout=20)

    run = app.runs.get(run_id)
    assert (run.state, run.cause) == ("failed", "undecodable")
    assert run.record.attempt == 1
    assert not ran.is_set()


def test_a_row_that_cannot_be_read_fails_on_every_store(app):
    @app.task(name="send")
    def send(to: str) -> None: ...

    run_id = new_id()
    app.store.do(Enqueue(run_id, "send", "default", "thread", 0, "[[],{}]"))
    app.worker(concurrency=1).drain(timeout=20)

    assert (app.runs.get(run_id).state, app.runs.get(run_id).cause) == ("failed", "undecodable")


HOSTILE = [
    "os:remove",
    "os.remove",
    "subprocess:run",
    "builtins:eval",
    "__main__:app",
    "antigravity:fly",
    "this",
    "tests.worker.test_hostile:end_badly",
    "send.__globals__",
    "Send",
    "../../etc/passwd",
]


def test_names_that_no_registry_holds_are_never_imported_nor_run(app, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("here")
    done = threading.Event()

    @app.task(name="send")
    def send() -> None:
        done.set()

    # A first worker loads what any worker needs.
    with app.worker():
        send.enqueue().result(timeout=20)
    arguments = json.dumps([[str(victim)], {}])
    ops = [
        Enqueue(new_id(), name, "default", lane, 9, arguments)
        for name in HOSTILE
        for lane in ("thread", "loop", "process", "suspect")
    ]
    app.store.apply(ops)
    before = set(sys.modules)
    with app.worker():
        send.enqueue().result(timeout=20)
        app.store.do(Tick(1000))
        again = send.enqueue()
        again.result(timeout=20)

    assert set(sys.modules) == before
    assert victim.read_text() == "here"
    states = app.store.get_states([op.run_id for op in ops])
    assert set(states.values()) == {"queued"}
    assert {app.runs.get(op.run_id).record.claim_number for op in ops} == {0}
    assert app.runs.get(ops[0].run_id).record.parked == "unregistered"


def test_a_run_whose_task_is_registered_later_is_run_then(app, store_url):
    run_id = new_id()
    app.store.do(Enqueue(run_id, "later:task", "default", "thread", 0, "[[],{}]"))
    app.worker().drain(timeout=20)
    assert app.runs.get(run_id).state == "queued"

    knowing = Duly(store_url)

    @knowing.task(name="later:task")
    def later() -> str:
        return "now"

    knowing.worker().drain(timeout=20)

    assert knowing.runs.get(run_id).result(timeout=5) == "now"
    knowing.close()


def test_a_body_that_keeps_the_interpreter_busy_costs_no_lease(app):
    @app.task(name="busy")
    def busy() -> int:
        deadline, rounds = time.monotonic() + 1.0, 0
        while time.monotonic() < deadline:
            rounds += 1
        return current().fence

    with app.worker(concurrency=2, lease=0.6, beat=0.2):
        runs = [busy.enqueue(), busy.enqueue()]

        assert [run.result(timeout=20) for run in runs] == [1, 1]


def test_a_body_that_closes_its_application_leaves_the_worker_its_store(app):
    @app.task(name="closes")
    def closes() -> int:
        app.close()
        return len(app.runs.list())

    with app.worker(concurrency=1):
        assert [closes.enqueue().result(timeout=20) for _ in range(2)] == [1, 2]


@pytest.mark.stores("sqlite-wal")
class TestSubprocesses:
    """What a subprocess of the process runner may do to itself."""

    def test_one_that_dies_with_its_body_is_a_crash_and_not_a_failure(self, shop):
        with shop.app.worker(concurrency=1):
            run = shop.process_ends.enqueue("die")
            wait_until(lambda: run.refresh().is_final, seconds=50, what="it ends")

            assert (run.state, run.cause) == ("failed", "crashed")
            assert [attempt.outcome for attempt in run.attempts()] == ["lost"] * 3
            assert (run.record.crashes, run.record.retries_used) == (2, 0)
            assert shop.process_ends.enqueue("fine").result(timeout=30) == "fine"

    def test_one_that_dies_while_others_have_its_pipe_is_a_crash_and_ends_them(
        self, shop, tmp_path
    ):
        log = str(tmp_path / "programs")
        with shop.app.worker(concurrency=1):
            run = shop.process_leaves_programs.enqueue(log)
            try:
                wait_until(lambda: run.refresh().is_final, seconds=50, what="it ends")
                left = [pid for pid in shop.noted_programs(log) if is_running(pid)]
            finally:
                for pid in filter(is_running, shop.noted_programs(log)):
                    os.kill(pid, signal.SIGKILL)

        assert (run.state, run.cause) == ("failed", "crashed")
        assert len(shop.noted_programs(log)) == 6
        assert left == []

    def test_one_that_never_reads_its_arguments_is_ended_by_the_timeout(
        self, store_url, tmp_path, monkeypatch
    ):
        (tmp_path / "deaf.py").write_text(
            "import sys, time\n"
            "from duly import Duly\n"
            "app = Duly()\n"
            "@app.task(executor='process', timeout=1)\n"
            "def deaf(text: str) -> None: ...\n"
            "if 'process_program' in sys.argv[0]: time.sleep(600)\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        deaf = importlib.import_module("deaf")
        deaf.app.use_url(store_url)
        with deaf.app.worker(concurrency=1):
            # More than fits into a pipe.
            run = deaf.deaf.enqueue("x" * 200_000)
            wait_until(lambda: run.refresh().is_final, seconds=30, what="it times out")
        deaf.app.close()

        assert (run.state, run.cause) == ("failed", "timed_out")

    def test_one_that_died_while_it_waited_costs_the_next_body_nothing(self, shop):
        with shop.app.worker(concurrency=1):
            first = shop.in_process.enqueue(1).result(timeout=30)
            os.kill(first["pid"], signal.SIGKILL)
            run = shop.in_process.enqueue(2)

            assert run.result(timeout=30)["value"] == 2
            assert run.record.attempt == 1

    def test_one_that_cannot_be_started_fails_the_run_and_not_the_worker(self, shop, monkeypatch):
        from duly.worker.runners import process  # noqa: PLC0415

        def refuse(*_arguments: object, **_options: object) -> None:
            message = "no more processes"
            raise BlockingIOError(message)

        with shop.app.worker(concurrency=1):
            with monkeypatch.context() as patch:
                patch.setattr(process.subprocess, "Popen", refuse)
                run = shop.in_process.enqueue(1)
                wait_until(lambda: run.refresh().is_final, seconds=30, what="it fails")
            assert "no more processes" in run.record.error

            assert shop.in_process.enqueue(2).result(timeout=30)["value"] == 2
