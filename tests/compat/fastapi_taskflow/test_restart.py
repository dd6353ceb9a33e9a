"""The runs that a restart leaves, in one process: the tests fake the accepting process."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from duly.compat.fastapi_taskflow import admission
from duly.compat.fastapi_taskflow.admission import ACCEPTER_TAG, AcceptingProcess
from duly.core.states import State
from duly.errors import StoreUnavailable
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.servers.processes import wait_until

SOON = 20.0


def accepters(manager) -> list[str]:
    return [json.loads(run.record.tags)[ACCEPTER_TAG] for run in manager.duly.runs.list()]


@pytest.fixture
def elsewhere(monkeypatch):
    """Return a function that fakes the process that accepts runs."""

    def accept_as(**changes):
        here = AcceptingProcess.here

        def fake(worker_id: str) -> AcceptingProcess:
            return here(worker_id)._replace(**changes)

        monkeypatch.setattr(AcceptingProcess, "here", fake)

    return accept_as


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "succeeded"),
        # Another process may have the same pid by now.
        ({"started": "1"}, "interrupted"),
        ({"pid": 2**22 + 1}, "interrupted"),
    ],
)
def test_a_task_that_is_not_persisted_ends_with_the_process_that_accepted_it(
    manager, elsewhere, changes, state
):
    ran = []

    @manager.task(name="one")
    def one() -> None:
        ran.append(1)

    elsewhere(**changes)
    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(one))
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="the run ends")
        assert (run.state, len(ran)) == (state, int(state == "succeeded"))
        if state == "interrupted":
            assert run.cause == "not_persisted"
            assert run.retry().result(timeout=SOON) is None
    assert len(ran) == 1


def test_a_failed_task_that_is_added_again_belongs_to_the_process_that_adds_it(manager, elsewhere):
    """Otherwise the run would execute at the next start, although its process has died."""
    ran = []

    @manager.task(name="fail")
    def fail() -> None:
        ran.append(1)
        raise ValueError

    with serving(manager):
        first = manager.duly.runs.get(adding(manager).add_task(fail, idempotency_key="k"))
        wait_until(lambda: first.refresh().is_final, seconds=SOON, what="it fails")
        elsewhere(started="1")
        again = manager.duly.runs.get(adding(manager).add_task(fail, idempotency_key="k"))
        wait_until(lambda: again.refresh().is_final, seconds=SOON, what="the run ends")
    assert (again.state, again.cause) == ("interrupted", "not_persisted")
    assert (first.refresh().state, len(ran)) == ("failed", 1)


def test_a_process_recognizes_its_own_tasks_without_information_from_the_kernel(
    manager, monkeypatch
):
    """Not every system has /proc."""
    monkeypatch.setattr(admission, "_place", lambda: "")
    monkeypatch.setattr(admission, "_started", lambda _pid: "")
    admission._this_process.cache_clear()

    @manager.task(name="one")
    def one() -> int:
        return 1

    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(one))
        assert run.result(timeout=SOON) == 1
    admission._this_process.cache_clear()


@pytest.mark.parametrize("how", ["added", "once"])
def test_an_interrupted_task_does_not_begin_again_while_its_process_lives(manager_of, how):
    """A deployment stops another process in a task, which this process would run next."""
    manager = manager_of(process_shutdown_timeout=0.05)
    begun = threading.Event()
    tries = []

    @manager.task(name="sleep", retries=2)
    async def sleep() -> None:
        tries.append(1)
        begun.set()
        await asyncio.sleep(60 if len(tries) == 1 else 0)

    client = serving(manager)
    with client:
        if how == "added":
            adding(manager).add_task(sleep)
        else:
            now = datetime.now(UTC)
            asyncio.run(manager.schedule_once(sleep, run_at=now, run_key="sleep"))
        assert begun.wait(SOON)
    (run,) = manager.duly.runs.list()
    assert run.state == "queued"
    with client:
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="the run ends")
        assert (run.state, run.cause, len(tries)) == ("interrupted", "not_persisted", 1)
        run.retry().result(timeout=SOON)


def test_waiting_one_time_tasks_do_not_count_towards_the_size_of_a_queue(manager_of):
    manager = manager_of(max_size=2)

    @manager.task(name="one")
    def one() -> str:
        return "ran"

    later = datetime(2040, 1, 1, tzinfo=UTC)
    with serving(manager):
        for number in range(3):
            asyncio.run(manager.schedule_once(one, run_at=later, run_key=str(number)))
        task_id = adding(manager).add_task(one)
        assert manager.duly.runs.get(task_id).result(timeout=SOON) == "ran"


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("is_live", [True, False])
def test_the_worker_decides_whether_a_process_on_another_machine_lives(manager, elsewhere, is_live):
    """On SQLite all processes are on one machine, where a worker's state is not needed."""

    @manager.task(name="one")
    def one() -> None: ...

    elsewhere(place="other-boot/pid:[1]", pid=1, **({} if is_live else {"worker_id": "gone"}))
    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(one))
        wait_until(lambda: run.refresh().is_final, seconds=SOON, what="the run ends")
    assert run.state == ("succeeded" if is_live else "interrupted")


def test_the_tag_of_the_accepting_process_is_hidden_from_users(manager):
    @manager.task(name="one")
    def one() -> None: ...

    with serving(manager):
        task_id = adding(manager).add_task(one)
        (worker,) = manager.duly.workers.list()
        assert accepters(manager) == [str(AcceptingProcess.here(worker.id))]
    assert manager.store.get(task_id).tags == {}
    assert AcceptingProcess.read(accepters(manager)[0]).pid == os.getpid()


def test_a_task_whose_function_is_unknown_waits_until_it_is_registered(manager_of):
    """The run is set aside, and starts in a process that has the function."""
    old, new, newest = (manager_of(requeue_pending=True) for _ in range(3))

    @old.task(name="renamed")
    def before() -> str:
        return "ran"

    with serving(old):
        old.duly.queues.pause("default")
        task_id = adding(old).add_task(before)
    new.duly.queues.resume("default")
    with serving(new):
        wait_until(
            lambda: new.duly.runs.get(task_id).record.parked == "unregistered",
            seconds=SOON,
            what="it is set aside",
        )
    newest.task(name="renamed")(before)
    with serving(newest):
        assert newest.duly.runs.get(task_id).result(timeout=SOON) == "ran"


def test_a_waiting_retry_continues_after_a_restart(manager_of):
    """The attempt is not forgotten, and the retry does not begin at once."""
    tries = []
    first, second = manager_of(requeue_pending=True), manager_of(requeue_pending=True)

    def flaky() -> int:
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return len(tries)

    for manager in (first, second):
        manager.task(name="flaky", retries=3, delay=2.0, backoff=1.0)(flaky)

    with serving(first):
        run = first.duly.runs.get(adding(first).add_task(flaky))
        wait_until(lambda: run.refresh().record.retries_used == 1, seconds=SOON, what="it failed")
    due_at = run.refresh().record.due_at
    assert run.state is State.QUEUED
    with serving(second):
        assert run.result(timeout=SOON) == 3
    (_first, retried, _last) = run.refresh().attempts()
    assert retried.started_at >= due_at
    assert (run.refresh().record.retries_used, len(tries)) == (2, 3)


def test_a_visible_failure_is_durable(manager_of):
    """Another manager of the store sees it, with its traceback."""
    manager, other = manager_of(), manager_of()

    @manager.task(name="broken")
    def broken() -> None:
        raise ValueError("boom")

    with serving(manager):
        task_id = adding(manager).add_task(broken)
        wait_until(
            lambda: other.store.get(task_id).status == "failed", seconds=SOON, what="it fails"
        )
        assert "boom" in other.store.get(task_id).stacktrace


def test_one_key_makes_one_run_across_managers(manager_of):
    """The key is in the store, which several managers add to at the same time."""
    ran, managers = [], [manager_of(requeue_pending=True) for _ in range(4)]
    functions = []
    for manager in managers:

        @manager.task(name="charge")
        def charge() -> None:
            ran.append(1)

        functions.append(charge)
    ids = set()

    def add(manager, function) -> None:
        with serving(manager):
            ids.update(
                adding(manager).add_task(function, idempotency_key="order-1") for _ in range(5)
            )
            run = manager.duly.runs.get(next(iter(ids)))
            wait_until(lambda: run.refresh().is_final, seconds=SOON, what="the run ends")

    threads = [
        threading.Thread(target=add, args=each) for each in zip(managers, functions, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(ids), len(ran)) == (1, 1)


ADDING = """
import asyncio, multiprocessing, sys
from duly import Duly
from duly.compat.fastapi_taskflow import ManagedBackgroundTasks, TaskManager

def add(all_are_ready):
    manager = TaskManager(duly=Duly(sys.argv[1]), requeue_pending=True)

    @manager.task(name="charge")
    def charge():
        with open(sys.argv[2], "a") as file:
            file.write("charged\\n")

    async def main():
        await manager.startup()
        await asyncio.to_thread(all_are_ready.wait, 60)
        tasks = ManagedBackgroundTasks(manager)
        task_id = await tasks.aadd_task(charge, idempotency_key="order-1")
        sys.stdout.write(f"{task_id}\\n")  # In one piece, since eight write into one pipe.
        sys.stdout.flush()
        await manager.duly.runs.get(task_id).aresult(timeout=30)
        await manager.shutdown()

    asyncio.run(main())

# Forked, so that what takes long is imported once.
fork = multiprocessing.get_context("fork")
all_are_ready = fork.Barrier(8)
processes = [fork.Process(target=add, args=[all_are_ready]) for _ in range(8)]
for process in processes:
    process.start()
for process in processes:
    process.join()
sys.exit(any(process.exitcode for process in processes))
"""


@pytest.mark.process
@pytest.mark.timeout(180)
def test_eight_processes_that_add_one_key_at_once_make_one_run(manager, store_url, tmp_path):
    """The store decides which of the processes makes the run."""
    assert manager.duly.runs.list() == []  # The tables exist.
    effects = tmp_path / "effects"
    command = [sys.executable, "-c", ADDING, store_url, str(effects)]
    adding_it = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        said, _ = adding_it.communicate(timeout=6 * SOON)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(adding_it.pid, signal.SIGKILL)
        adding_it.wait()
    ids = said.split()

    assert adding_it.returncode == 0
    assert ids == ids[:1] * 8
    assert effects.read_text() == "charged\n"


@pytest.mark.stores("sqlite-wal")
def test_an_unavailable_store_is_an_error_and_makes_no_duplicate(manager, monkeypatch):
    """The caller gets the error of the store, and no run exists."""

    @manager.task(name="one")
    def one() -> None: ...

    with serving(manager):

        def away(_ops):
            raise StoreUnavailable("away")

        with monkeypatch.context() as patched:
            patched.setattr(manager.duly.store, "apply", away)
            with pytest.raises(StoreUnavailable):
                adding(manager).add_task(one, idempotency_key="k")
    assert manager.duly.runs.list() == []
