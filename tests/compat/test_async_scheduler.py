"""The `AsyncScheduler` of `duly.integrations`, alone and in four real uvicorn processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest

from duly import Duly, faultpoints
from duly.compat.async_scheduler import AsyncScheduler, DistributedDBLock, LastRunStatus, TaskType
from duly.errors import DuplicateTask, LockBusy
from duly.store.due_schedules import fire_due
from tests.servers.processes import wait_until

ROOT = Path(__file__).parents[2]


@pytest.fixture
def app(store_url: str):
    """Yield an application on a fresh store of each kind."""
    app = Duly(store_url)
    yield app
    app.close()


async def greet(name: str) -> str:
    """A task of these tests."""
    if name == "nobody":
        raise ValueError("no such user")
    return f"hello {name}"


@pytest.mark.stores("sqlite-wal")
def test_the_last_of_six_fields_names_seconds_as_in_croniter(app):
    asyncio.run(AsyncScheduler(app).add_cron_task("often", "* * * * * */20", greet, args=("ann",)))

    assert {instant.second for instant in app.schedules.next("often", 6)} == {0, 20, 40}


def test_an_instant_is_skipped_while_the_last_run_is_live_as_in_the_article(harness):
    """Its lock allows one run at a time. The next run is computed when that one has ended."""
    ran: list[int] = []

    async def report() -> None:
        ran.append(1)
        if len(ran) == 1:  # The task outlasts its interval.
            harness.advance(60)
            fire_due(harness.app.store)

    asyncio.run(AsyncScheduler(harness.app).add_cron_task("report", "* * * * *", report))
    for _ in range(2):
        harness.advance(60)
        harness.drain()

    firings = harness.app.schedules.firings("report")
    outcomes = [(firing.outcome, firing.reason) for firing in reversed(firings)]
    assert outcomes == [("run", None), ("skipped", "overlap"), ("run", None)]
    assert len(ran) == 2


def test_one_time_and_cron_tasks_run_on_the_loop_of_the_application(app):
    loops: list[object] = []

    async def tell(n: int) -> None:
        loops.append(asyncio.get_running_loop())

    async def main() -> None:
        scheduler = AsyncScheduler(app)
        await scheduler.start()
        await scheduler.add_once_task("once", datetime.now(UTC), tell, args=(1,))
        await scheduler.add_cron_task("cron", "* * * * * *", tell, kwargs={"n": 2})
        for _ in range(400):
            logs = await scheduler.list_task_logs("cron", TaskType.CRON)
            if len(loops) >= 2 and logs and logs[-1].status is LastRunStatus.SUCCESS:
                break
            await asyncio.sleep(0.05)
        await scheduler.stop()
        assert loops
        assert set(loops) == {asyncio.get_running_loop()}
        (log,) = await scheduler.list_task_logs("once")
        assert (log.task_name, log.task_type, log.status) == (
            "once",
            TaskType.ONCE,
            LastRunStatus.SUCCESS,
        )
        assert await scheduler.cleanup_old_logs() is False

    asyncio.run(main())


def test_a_failure_is_in_the_logs_and_bad_input_is_a_value_error(app):
    async def main() -> None:
        scheduler = AsyncScheduler(app)
        with pytest.raises(ValueError, match="cron expression"):
            await scheduler.add_cron_task("bad", "often", greet)
        with pytest.raises(ValueError, match="name and a function"):
            scheduler.register_task("", greet)
        await scheduler.add_once_task("once", datetime.now(UTC), greet, args=("nobody",))
        await scheduler.start()
        logs = []
        while not logs or logs[0].status is LastRunStatus.RUNNING:
            await asyncio.sleep(0.05)
            logs = list(await scheduler.list_task_logs("once"))
        await scheduler.stop()
        assert logs[0].status is LastRunStatus.FAILURE
        assert "no such user" in (logs[0].error_message or "")

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_logs_of_an_unknown_task_are_empty(app):
    assert asyncio.run(AsyncScheduler(app).list_task_logs("nobody")) == []


@pytest.mark.parametrize("task_type", [None, *TaskType])
def test_the_number_of_queries_for_logs_does_not_depend_on_the_number_of_tasks(
    app, monkeypatch, task_type
):
    scheduler = AsyncScheduler(app)
    asked: list[object] = []

    def count() -> int:
        asked.clear()
        logs = asyncio.run(scheduler.list_task_logs(task_type=task_type, limit=5))
        kinds = set(TaskType) if task_type is None else {task_type}
        assert {log.task_type for log in logs} <= kinds
        assert len(logs) == (5 if task_type is None else min(5, tasks))
        return len(asked)

    def fire(number: int) -> None:
        asyncio.run(scheduler.add_once_task(f"once-{number}", now, greet, args=("ann",)))
        asyncio.run(scheduler.add_cron_task(f"cron-{number}", "0 0 1 1 *", greet, args=("ann",)))
        app.schedules.run_now(f"cron-{number}")

    now = datetime.now(UTC)
    query = type(app.store)._query
    monkeypatch.setattr(
        type(app.store), "_query", lambda *args, **kw: (asked.append(args), query(*args, **kw))[1]
    )
    for number in range(3):
        fire(number)
    fire_due(app.store)
    tasks = 3
    few = count()
    for number in range(3, 12):
        fire(number)
    fire_due(app.store)
    tasks = 12

    assert count() == few <= 3


def test_logs_are_paged_newest_first(app):
    scheduler = AsyncScheduler(app)
    now = datetime.now(UTC)
    for number in range(4):
        asyncio.run(scheduler.add_once_task(f"once-{number}", now, greet, args=("ann",)))
        fire_due(app.store)

    pages = [
        [log.task_name for log in asyncio.run(scheduler.list_task_logs(limit=2, offset=offset))]
        for offset in (0, 2, 4)
    ]

    assert pages == [["once-3", "once-2"], ["once-1", "once-0"], []]


LATER = timedelta(hours=1)


def test_a_second_one_time_task_with_the_name_of_a_waiting_task_also_runs_and_is_logged(
    app, caplog
):
    scheduler = AsyncScheduler(app)
    greeted: list[str] = []

    async def note(name: str) -> None:
        greeted.append(name)

    async def main() -> None:
        for name in ("ann", "bob", "cid"):
            at = datetime.now(UTC) + timedelta(seconds=0.5)
            await scheduler.add_once_task("remind_7", at, note, args=(name,))
        assert await scheduler.list_task_logs("remind_7") == [], "none of them is due yet"
        await scheduler.start()
        while len(greeted) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await scheduler.stop()

    asyncio.run(asyncio.wait_for(main(), 30))

    logs = asyncio.run(scheduler.list_task_logs("remind_7"))
    assert sorted(greeted) == ["ann", "bob", "cid"]
    assert [(log.task_name, log.task_type) for log in logs] == [("remind_7", TaskType.ONCE)] * 3
    lines = [line.message for line in caplog.records if "remind_7" in line.message]
    assert len([line for line in lines if "is enqueued in addition to it" in line]) == 2


@pytest.mark.parametrize(
    ("policy", "words", "kept"),
    [
        ("replace", "is replaced", "bob"),
        ("keep", "is kept, and this one-time task is not added", "ann"),
    ],
)
@pytest.mark.stores("sqlite-wal")
def test_a_one_time_task_that_is_replaced_or_ignored_is_logged(app, caplog, policy, words, kept):
    scheduler = AsyncScheduler(app)
    for name in ("ann", "bob"):
        at = datetime.now(UTC) + LATER
        asyncio.run(
            scheduler.add_once_task("remind_7", at, greet, args=(name,), on_duplicate=policy)
        )

    assert kept in app.schedules.get("remind_7").arguments
    assert len([line for line in caplog.records if words in line.message]) == 1


@pytest.mark.stores("sqlite-wal")
def test_a_one_time_task_leaves_the_cron_task_of_its_name_alone(app):
    scheduler = AsyncScheduler(app)
    asyncio.run(scheduler.add_cron_task("report", "0 0 1 1 *", greet, args=("ann",)))

    asyncio.run(scheduler.add_once_task("report", datetime.now(UTC) + LATER, greet, args=("bob",)))

    assert app.schedules.get("report").cron == "0 0 1 1 *"
    assert ["bob" in run.record.arguments for run in app.runs.list()] == [True]


@pytest.mark.stores("sqlite-wal")
def test_a_cron_task_that_replaces_a_one_time_task_is_logged(app, caplog):
    scheduler = AsyncScheduler(app)
    asyncio.run(scheduler.add_once_task("report", datetime.now(UTC) + LATER, greet, args=("bob",)))

    for _ in range(2):  # As at each start.
        asyncio.run(scheduler.add_cron_task("report", "0 0 1 1 *", greet, args=("ann",)))

    assert len([line for line in caplog.records if "is replaced" in line.message]) == 1


def test_closures_and_bound_methods_run_under_their_task_names(app):
    done: list[str] = []

    def telling(text: str):
        async def tell() -> None:
            done.append(text)

        return tell

    async def main() -> None:
        scheduler = AsyncScheduler(app)
        for name in ("charge", "refund"):
            await scheduler.add_once_task(name, datetime.now(UTC), telling(name))
        for greeter in (Greeter("ann"), Greeter("bob")):
            await scheduler.add_once_task(greeter.name, datetime.now(UTC), greeter.greet)
        await scheduler.start()
        for name in ("charge", "refund", "ann", "bob"):
            while not (logs := await scheduler.list_task_logs(name)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            assert len(logs) == 1
            (run,) = app.runs.list(tag=("schedule", name))
            assert await run.aresult(timeout=20) == ("hello " + name if name in GREETED else None)
            assert run.record.task == name
        await scheduler.stop()

    asyncio.run(asyncio.wait_for(main(), 30))

    assert sorted(done) == ["charge", "refund"]


GREETED = ("ann", "bob")


class Greeter:
    """Two instances have the same method, and are different tasks."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def greet(self) -> str:
        """A task of these tests."""
        return f"hello {self.name}"


def test_a_cron_task_is_named_by_its_task_name_and_its_last_function_runs(app):
    async def first() -> str:
        return "first"

    async def second() -> str:
        return "second"

    async def main() -> str:
        scheduler = AsyncScheduler(app)
        await scheduler.add_cron_task("report", "0 0 1 1 *", first)
        await scheduler.add_cron_task("report", "0 0 1 1 *", second)
        await scheduler.start()
        run = app.schedules.run_now("report")
        result = await run.aresult(timeout=20)
        await scheduler.stop()
        assert run.record.task == "report"
        return str(result)

    assert asyncio.run(asyncio.wait_for(main(), 30)) == "second"


def test_a_task_of_the_application_is_not_replaced_by_one_of_the_scheduler(app):
    @app.task(name="report")
    def report() -> None: ...

    with pytest.raises(DuplicateTask, match="report"):
        AsyncScheduler(app).register_task("report", greet)


def test_only_the_owner_of_a_lock_renews_and_releases_it(app):
    async def main() -> None:
        one, other = DistributedDBLock(duly=app), DistributedDBLock(duly=app)
        assert await one.acquire("task")
        assert not await one.acquire("task")
        assert not await other.acquire("task")
        assert not await other.renew("task")
        await other.release("task")
        assert await one.renew("task")
        with pytest.raises(LockBusy):
            async with other.lock("task"):
                pass
        await one.release("task")
        async with other.lock("task"):
            assert not await one.acquire("task")
        assert await one.acquire("task")
        assert await one.cleanup_expired_locks() is False

    asyncio.run(main())


def test_a_cancelled_acquire_leaves_the_lock_free(app):
    is_asking, may_continue = threading.Event(), threading.Event()

    def hold() -> None:
        faultpoints.disarm()
        is_asking.set()
        may_continue.wait(20)

    async def main() -> None:
        acquiring = asyncio.create_task(DistributedDBLock(duly=app).acquire("task"))
        await asyncio.to_thread(is_asking.wait, 20)
        acquiring.cancel()
        may_continue.set()
        with pytest.raises(asyncio.CancelledError):
            await acquiring

    app.runs.list()
    faultpoints.arm("operate.before_write", hold)
    asyncio.run(main())

    app.lock("task").acquire(timeout=20).release()


@pytest.mark.process
def test_four_uvicorn_processes_run_every_instant_once(store_url, tmp_path):
    log = tmp_path / "jobs.log"
    log.touch()
    app = Duly(store_url)
    with serving(store_url, log) as port:
        wait_until(lambda: _answers(port, "/"), seconds=60, what="the server answers")
        for count in (1, 2):
            # The second reminder to the same user is sent as well as the first.
            assert _answers(port, MAIL, method="PUT")
            wait_until(lambda: _sent(log) == count, seconds=30, what="the mail is sent")  # noqa: B023
        wait_until(
            lambda: len(app.schedules.firings("cleanup_temp_files")) >= 4,
            seconds=30,
            what="four instants have fired",
        )
    runs = app.runs.list(limit=200)
    ledger = {name: app.schedules.firings(name) for name in EVERY_INSTANT}
    app.close()

    assert _sent(log) == 2
    assert {run.record.attempt for run in runs} == {1}
    done = Counter(line.split(" ", 1)[1] for line in log.read_text().splitlines())
    for name, firings in ledger.items():
        instants = Counter(fired.instant for fired in firings)
        assert set(instants.values()) == {1}
        assert all((one - other).total_seconds() == 2 for one, other in pairwise(instants))
        started = {run.id for run in runs if run.record.claim_number > 0}
        assert done[name] == sum(fired.run_id in started for fired in firings)


MAIL = "/send_email_notification?user_id=7&message=hi&seconds=1"
EVERY_INSTANT = ("cleanup_temp_files", "send_newsletter_or_fail")


@contextmanager
def serving(url: str, log: Path) -> Iterator[int]:
    """Serve the example from four processes, and yield the port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {
        "DULY_URL": url,
        "JOBS_LOG": str(log),
        "EVERY_MINUTE": "* * * * * */2",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    command = [sys.executable, "-m", "uvicorn", "examples.async_scheduler.main:app"]
    command += ["--workers", "4", "--port", str(port), "--log-level", "warning"]
    server = subprocess.Popen(command, env=environment, cwd=log.parent, start_new_session=True)
    try:
        yield port
        server.terminate()
        server.wait(timeout=40)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _sent(log: Path) -> int:
    return log.read_text().count("send_email_notification 7 hi")


def _answers(port: int, path: str, method: str = "GET") -> bool:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:  # noqa: S310
            return answer.status == 200
    except OSError:
        return False


def test_a_task_that_one_process_adds_runs_in_another_process_after_a_restart(store_url):
    adding = Duly(store_url)
    asyncio.run(
        AsyncScheduler(adding).add_once_task(
            "once", datetime.now(UTC) + timedelta(seconds=0.2), greet, args=("bob",)
        )
    )
    adding.close()

    async def later() -> str:
        app = Duly(store_url)
        scheduler = AsyncScheduler(app)
        # It registers another function of this module, as the article's lifespan does.
        scheduler.register_task("other", public_sibling)
        await scheduler.start()
        while not (logs := await scheduler.list_task_logs("once")):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        run = app.runs.list(tag=("schedule", "once"))[0]
        result = await run.aresult(timeout=20)
        await scheduler.stop()
        app.close()
        assert len(logs) == 1
        return str(result)

    assert asyncio.run(asyncio.wait_for(later(), 30)) == "hello bob"


def public_sibling() -> None:
    """A public function of the module."""
