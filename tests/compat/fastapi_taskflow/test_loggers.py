"""Observers receive log lines and lifecycle events in order, and cannot harm tasks."""

import asyncio
import re
import threading

import pytest
from fastapi import FastAPI

from duly import BadOption
from duly.compat.fastapi_taskflow import (
    FileLogger,
    InMemoryLogger,
    LoggerChain,
    StdoutLogger,
    TaskManager,
    TaskObserver,
    observer_dispatch,
    task_log,
)
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

SOON = 20.0


def test_observers_receive_log_lines_and_lifecycle_events(manager_of):
    """On threads and on the loop, for attempts that fail and for the last one."""

    class Broken(TaskObserver):
        async def on_lifecycle(self, event):
            raise RuntimeError(event.status)

    memory = InMemoryLogger()
    manager = manager_of(loggers=[Broken(), memory])
    tries = []

    @manager.task(name="flaky", retries=1)
    def flaky(number: int) -> None:
        tries.append(number)
        task_log(f"try {len(tries)}", level="debug", number=number)
        raise ValueError(f"no {len(tries)}")

    @manager.task(name="fine")
    async def fine() -> int:
        task_log("fine")
        return 1

    with serving(manager):
        failed = adding(manager).add_task(flaky, 7, tags={"tenant": "a"})
        with pytest.raises(Exception, match="no 2"):
            manager.duly.runs.get(failed).result(timeout=SOON)
        good = adding(manager).add_task(fine)
        assert manager.duly.runs.get(good).result(timeout=SOON) == 1

    assert [(event.task_id, event.status.value) for event in memory.lifecycle_events] == [
        (failed, "running"),
        (failed, "running"),
        (failed, "failed"),
        (good, "running"),
        (good, "success"),
    ]
    end = memory.lifecycle_events[2]
    assert (end.error, end.retries_used, end.tags) == ("ValueError: no 2", 1, {"tenant": "a"})
    assert "raise ValueError" in end.stacktrace
    assert [
        (event.func_name, event.message, event.attempt, event.extra) for event in memory.log_events
    ] == [
        ("flaky", "try 1", 0, {"number": 7}),
        ("flaky", "try 2", 1, {"number": 7}),
        ("fine", "fine", 0, {}),
    ]


@pytest.mark.stores("sqlite-wal")
def test_a_log_file_has_a_line_for_each_event(manager_of, tmp_path, capsys):
    file = tmp_path / "tasks.log"
    manager = manager_of(
        log_file=str(file), log_file_mode="watched", log_lifecycle=True, loggers=[StdoutLogger()]
    )

    @manager.task(name="greet")
    def greet() -> None:
        task_log("hello\n[fake] line")
        task_log("too quiet", level="debug")

    with serving(manager):
        task_id = adding(manager).add_task(greet)
        manager.duly.runs.get(task_id).result(timeout=SOON)
    lines = file.read_text().splitlines()
    short = task_id[:8]
    assert lines[1] == rf"[{short}] [greet] hello\n[fake] line"
    assert [line.rpartition(" ")[2] for line in (lines[0], lines[2])] == ["RUNNING", "SUCCESS"]
    began, line, ended = capsys.readouterr().out.splitlines()
    assert [began, ended] == [lines[0], lines[2]]
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
    assert re.fullmatch(rf"\[{short}\] \[greet\] {stamp} hello\\n\[fake\] line", line)


@pytest.mark.stores("sqlite-wal")
def test_a_log_file_exists_before_its_first_line(manager_of, tmp_path):
    manager_of(log_file=str(tmp_path / "rotated.log"))
    FileLogger(str(tmp_path / "watched.log"), mode="watched")

    assert (tmp_path / "rotated.log").read_text() == ""
    assert (tmp_path / "watched.log").read_text() == ""


@pytest.mark.stores("sqlite-wal")
def test_an_option_of_the_log_file_does_not_affect_other_observers(manager_of):
    assert manager_of(log_lifecycle=True).logger is None
    assert isinstance(manager_of(log_lifecycle=True, loggers=[StdoutLogger()]).logger, LoggerChain)


@pytest.mark.stores("sqlite-wal")
def test_invalid_observer_options_are_refused(manager_of):
    with pytest.raises(BadOption, match="min_level"):
        TaskObserver("loud")
    with pytest.raises(BadOption, match="mode"):
        FileLogger("tasks.log", mode="thrown away")
    assert isinstance(manager_of(loggers=[InMemoryLogger()]).logger, LoggerChain)
    assert manager_of().logger is None
    assert isinstance(manager_of(), TaskManager)


@pytest.mark.stores("sqlite-wal")
def test_two_observed_functions_with_one_name_are_refused(manager_of):
    """Observed functions are wrapped, and all wrappers are defined at the same place."""
    from duly.errors import DuplicateTask  # noqa: PLC0415

    manager = manager_of(loggers=[InMemoryLogger()])

    @manager.task(name="process")
    def process() -> None: ...

    first = process
    with pytest.raises(DuplicateTask):

        @manager.task(name="process")
        def process() -> None: ...

    assert first is not None


@pytest.mark.stores("sqlite-wal")
def test_a_closed_event_loop_with_its_observers_harms_no_task(manager_of):
    """As after a second Ctrl-C, without a shutdown: a thread still runs its task."""
    manager = manager_of(loggers=[InMemoryLogger()], process_shutdown_timeout=SOON)
    has_begun, may_continue = threading.Event(), threading.Event()

    @manager.task(name="work")
    def work() -> str:
        has_begun.set()
        assert may_continue.wait(SOON)
        task_log("still here")
        return "done"

    loop = asyncio.new_event_loop()
    loop.run_until_complete(manager.startup())
    task_id = adding(manager).add_task(work)
    assert has_begun.wait(SOON)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    may_continue.set()

    assert manager.duly.runs.get(task_id).result(timeout=SOON) == "done"
    worker = manager._serving.worker
    wait_until(lambda: worker.worker_id is None, seconds=SOON, what="the worker stops itself")
    for thread in threading.enumerate():
        if thread.name == "duly-stop":
            thread.join(SOON)  # The worker still unregisters, which needs an open store.


@pytest.mark.stores("sqlite-wal")
def test_an_observer_that_never_returns_does_not_prevent_the_application_from_ending(
    manager_of, monkeypatch, caplog
):
    class Stuck(TaskObserver):
        closed = left = left_before = False

        async def on_lifecycle(self, _event):
            heard.set()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                self.left = True

        async def close(self):
            self.closed, self.left_before = True, self.left

    monkeypatch.setattr(observer_dispatch, "OBSERVERS_SECONDS", 0.2)
    heard, stuck = threading.Event(), Stuck()
    manager = manager_of(loggers=[stuck])

    @manager.task(name="one")
    async def one() -> int:
        return 1

    with serving(manager):
        task_id = adding(manager).add_task(one)
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == 1
        assert heard.wait(SOON)

    assert stuck.closed
    assert stuck.left_before
    assert "were dropped" in caplog.text


@pytest.mark.stores("sqlite-wal")
def test_observers_are_closed_when_their_loop_is_stopped(manager_of, monkeypatch):
    """Also if there are more lines than they have received."""

    class Slow(TaskObserver):
        closed = False

        async def on_log(self, _event):
            heard.set()
            await asyncio.sleep(60)

        async def close(self):
            self.closed = True

    monkeypatch.setattr(observer_dispatch, "_MOST_WAITING", 5)
    heard, slow = threading.Event(), Slow()
    manager = manager_of(loggers=[slow])

    @manager.task(name="talk")
    def talk() -> None:
        for number in range(10):
            task_log(str(number))

    async def serve() -> None:
        app = FastAPI()
        manager.init_app(app)
        async with app.router.lifespan_context(app):
            adding(manager).add_task(talk)
            await asyncio.get_running_loop().create_future()

    async def main() -> None:
        task = asyncio.create_task(serve())
        await asyncio.to_thread(heard.wait, SOON)
        (run,) = manager.duly.runs.list()
        await asyncio.to_thread(run.result, timeout=SOON)
        assert not task.done()

    asyncio.run(main())

    assert slow.closed
