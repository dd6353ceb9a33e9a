"""`duly worker`: checks its options and starts the supervisor."""

import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

import duly.worker
from duly import Duly
from duly.observe.log_setup import FORMAT, LEVEL
from tests.servers.processes import wait_until

LINGER = """
import os
import time
from pathlib import Path

from duly import Duly

app = Duly()


@app.task
def linger() -> None:
    Path(os.environ["BEGUN"]).touch()
    time.sleep(600)
"""
DULY = str(Path(sys.executable).with_name("duly"))
ROOT = Path(__file__).parents[2]
SHOP = """
from duly import Duly

app = Duly()


@app.task
def charge(amount: int) -> int:
    return amount


@app.cron("0 3 * * *")
def nightly() -> None: ...
"""


@pytest.fixture
def kept(monkeypatch):
    """The arguments of the supervisor. No supervisor starts."""
    calls = []

    def supervise(store, app, url, settings, bus, *, processes, drain):
        calls.append(SimpleNamespace(**locals()))
        store.close()
        return SimpleNamespace(run=lambda: 7)

    supervisor = SimpleNamespace(Supervisor=supervise)
    monkeypatch.setitem(sys.modules, "duly.worker.supervisor", supervisor)
    monkeypatch.setattr(duly.worker, "supervisor", supervisor, raising=False)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    return calls


def test_options_become_settings(cli, folder, url, kept, monkeypatch):
    result = cli(
        *("worker", "orders:app", "--url", url, "-c", "3", "--async-limit", "7"),
        *("-q", "mail:20,default", "--processes", "2", "--lease", "30", "--beat", "4"),
        *("--grace", "9", "--drain"),
    )

    (call,) = kept
    assert result.exit_code == 7
    assert (call.app, call.url, call.processes, call.drain) == ("orders:app", url, 2, True)
    assert (call.settings.concurrency, call.settings.async_limit) == (3, 7)
    assert call.settings.queues == (("mail", 20), ("default", None))
    assert (call.settings.lease, call.settings.beat, call.settings.grace) == (30, 4, 9)


def test_queues_can_be_excluded_and_tasks_limited(cli, folder, url, kept):
    cli("worker", "orders:app", "--url", url, "--exclude-queues", "slow, mail", "--max-tasks", "5")
    refused = cli("worker", "orders:app", "--url", url, "-q", "mail", "--exclude-queues", "slow")

    (call,) = kept
    assert (call.settings.exclude_queues, call.settings.max_tasks) == (("slow", "mail"), 5)
    assert refused.exit_code == 2
    assert "not both" in refused.stderr


def test_the_store_is_named_and_the_application_not_imported(cli, folder, url, kept):
    result = cli("worker", "orders", "--url", url)

    assert "orders" not in sys.modules
    shown = Duly(url)
    assert shown.store.shown_url in result.stderr
    shown.close()


def test_the_application_can_come_from_the_environment(cli, folder, url, kept, monkeypatch):
    monkeypatch.setenv("DULY_APP", "orders:app")
    (folder / "other.py").write_text("from duly import Duly\napp = Duly()\n")

    cli("worker", "--url", url, "--quiet")
    cli("worker", "--url", url, "--app", "other:app")

    assert [call.app for call in kept] == ["orders:app", "other:app"]


@pytest.mark.parametrize(
    ("options", "level"), [(("--quiet",), "WARNING"), (("-v",), "DEBUG"), ((), "INFO")]
)
def test_the_log_level_reaches_the_child_processes(cli, folder, url, kept, options, level):
    cli("worker", "orders:app", "--url", url, *options)

    assert os.environ.get(LEVEL) == level


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("store_named_by", ["option", "environment", "project", "nobody"])
def test_the_log_format_reaches_the_child_processes(
    cli, folder, url, kept, monkeypatch, store_named_by
):
    if store_named_by == "environment":
        monkeypatch.setenv(FORMAT, "json")
    if store_named_by == "project":
        (folder / "pyproject.toml").write_text("[tool.duly]\nlog_format = 'json'\n")
    options = ["--json"] if store_named_by == "option" else []

    cli("worker", "orders:app", "--url", url, *options)

    assert os.environ[FORMAT] == ("text" if store_named_by == "nobody" else "json")


# The command refuses before it uses a store, so one kind is enough.
@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    "wrong",
    [
        (),
        ("orders app",),
        ("orders.py:app",),
        ("orders:app", "-q", "mail:0"),
        ("orders:app", "--processes", "0"),
        ("orders:app", "--beat", "10"),
        ("orders:app", "-c", "0"),
        ("orders:app", "--grace", "-1"),
    ],
)
def test_options_that_cannot_work_are_refused(cli, folder, url, kept, wrong):
    result = cli("worker", "--url", url, *wrong)

    assert result.exit_code == 2
    assert kept == []


@pytest.mark.process
def test_a_worker_completes_the_runs_of_an_example(folder, url):
    environment = os.environ | {"DULY_URL": url}
    enqueued = subprocess.run(
        [sys.executable, "examples/shop.py"],
        cwd=ROOT,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    )
    app = Duly(url)

    def has_done_all() -> bool:
        worked = subprocess.run(
            [DULY, "worker", "examples.shop:app", "--drain"],
            cwd=ROOT,
            env=environment,
            check=False,
            capture_output=True,
            text=True,
        )
        assert worked.returncode == 0, worked.stderr
        return all(run.state == "succeeded" for run in app.runs.list())

    wait_until(has_done_all, seconds=50, what="a receipt is sent again when its retry is due")

    runs = app.runs.list()
    app.close()
    assert enqueued.stdout.count("\n") == 3
    assert len(runs) == 6
    assert {(run.record.task, run.state) for run in runs} == {
        ("examples.shop:charge", "succeeded"),
        ("examples.shop:send_receipt", "succeeded"),
    }


@pytest.mark.process
def test_a_worker_lists_its_tasks_and_the_next_fires_of_its_schedules(folder, url):
    (folder / "shop.py").write_text(SHOP)

    worker = subprocess.run(
        [DULY, "worker", "shop:app", "--drain", "--url", url, "-c", "3"],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert "2 tasks: shop:charge, shop:nightly" in worker.stderr
    assert "queues: all; concurrency: 1 process, each with 3 threads" in worker.stderr
    assert re.search(r"1 schedule, next: shop:nightly at \S+ 03:00:00 UTC \(in ", worker.stderr)


@pytest.mark.process
def test_each_worker_process_tells_the_subscribers_of_its_application(folder, url):
    subscribing = """
from duly.extend import on_attempt_end

on_attempt_end(app, lambda ended: print("ended", ended.run_id, ended.state, flush=True))
"""
    (folder / "shop.py").write_text(SHOP + subscribing)
    with closing(Duly(url)) as app:
        run = app.task(name="shop:charge")(lambda amount: amount).enqueue(4)

    worker = subprocess.run(
        [DULY, "worker", "shop:app", "--drain", "--url", url],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert f"ended {run.id} succeeded" in worker.stdout.splitlines()


@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
def test_a_worker_without_tasks_warns_even_where_it_is_quiet(folder, url):
    (folder / "shop.py").write_text("from duly import Duly\napp = Duly()\n")

    worker = subprocess.run(
        [DULY, "worker", "shop:app", "--drain", "--url", url, "--quiet"],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert "no task is registered" in worker.stderr


@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
class TestStopping:
    """A worker stops while it runs a task that does not end."""

    @pytest.fixture
    def stop(self, folder, url):
        """Return what a worker logs that gets these signals while a task runs, and its status."""

        def stopped(*signals, grace="60"):
            (folder / "shop.py").write_text(LINGER)
            app = Duly(url)

            @app.task(name="shop:linger")
            def linger() -> None: ...

            run = linger.enqueue()
            log = folder / "worker.log"
            with log.open("w") as output:
                worker = subprocess.Popen(
                    [DULY, "worker", "shop:app", "--url", url, "--grace", grace],
                    stderr=output,
                    env=os.environ | {"BEGUN": str(folder / "begun")},
                )
            try:
                wait_until((folder / "begun").exists, seconds=40, what="the task has begun")
                for number, line in signals:
                    worker.send_signal(number)
                    wait_until(lambda: line in log.read_text(), seconds=20, what=line)  # noqa: B023
                return worker.wait(30), log.read_text(), run
            finally:
                worker.kill()
                worker.wait()
                app.close()

        return stopped

    def test_a_worker_logs_its_wait_at_ctrl_c_and_ends_the_wait_at_a_second_one(self, stop):
        status, log, run = stop((signal.SIGINT, " waits up to "), (signal.SIGINT, "at once, by"))

        assert status == 0
        waits = "waiting up to 60 s for 1 running task; a second Ctrl-C kills running tasks"
        assert f"INFO stopping: Ctrl-C; {waits}" in log
        assert f" waits up to 60 s for shop:linger {run.id}" in log
        assert "WARNING" not in log
        (ended,) = (line for line in log.splitlines() if "at once, by" in line)
        assert run.id in ended

    def test_a_worker_that_ends_before_its_task_logs_that_the_grace_was_too_short(self, stop):
        status, log, _ = stop((signal.SIGTERM, "did not end within"), grace="0.3")

        assert status == 0
        assert "stopping: SIGTERM; waiting up to 0.3 s for 1 running task; a second signal" in log
        assert "its runs did not end within the grace of 0.3 s" in log


@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
def test_a_worker_that_ends_by_itself_says_why(folder, url):
    (folder / "shop.py").write_text(SHOP)

    worker = subprocess.run(
        [DULY, "worker", "shop:app", "--drain", "--url", url, "--json"],
        check=True,
        capture_output=True,
        text=True,
        timeout=50,
    )

    messages = [json.loads(line)["message"] for line in worker.stderr.splitlines()]
    assert "stopping: nothing is left to do" in messages


@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_worker_whose_log_is_on_a_full_disk_works_and_sets_its_exit_status(folder, url):
    app = Duly(url)

    @app.task(name="orders:add")
    def add(a: int, b: int = 0) -> int: ...

    run = add.enqueue(3, 4)

    with Path("/dev/full").open("w") as full:
        statuses = [
            subprocess.run(
                [DULY, "worker", reference, "--drain", "--url", url],
                check=False,
                stdout=full,
                stderr=full,
                timeout=50,
            ).returncode
            for reference in ("orders:app", "nothing_there:app")
        ]

    assert statuses == [0, 2]
    assert run.result(timeout=5) == 7
    app.close()


@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
def test_a_worker_on_a_copy_of_a_store_exits_with_one_line(folder, url):
    app = Duly(url)

    @app.task(name="orders:add")
    def add(a: int, b: int = 0) -> int: ...

    with app.worker():
        add.using(delay=3600).enqueue(3, 4)
    app.close()
    shutil.copyfile(url.removeprefix("sqlite:///"), folder / "copy.db")

    worker = subprocess.run(
        [DULY, "worker", "orders:app", "--url", f"sqlite:///{folder / 'copy.db'}"],
        check=False,
        capture_output=True,
        text=True,
        timeout=50,
    )

    assert worker.returncode == 1, worker.stderr
    assert "Traceback" not in worker.stderr
    assert "duly restore --since" in worker.stderr.splitlines()[-1]


# None of these reaches the store, so one kind is enough.
@pytest.mark.stores("sqlite-wal")
@pytest.mark.process
@pytest.mark.parametrize("store_named_by", ["application", "option"])
class TestAnApplicationThatDoesNotLoad:
    """The worker ends at once, no matter whether the application or an option names the store."""

    @pytest.fixture
    def start(self, folder, url, store_named_by):
        """Start a worker for a module with these lines. Return the completed process."""

        def started(reference, lines, *options):
            (folder / "broken.py").write_text(lines)
            options = [*options, *(["--url", url] if store_named_by == "option" else [])]
            command = [DULY, "worker", reference, *options]
            return subprocess.run(command, check=False, capture_output=True, text=True)

        return started

    def test_the_output_ends_with_the_error_after_the_traceback(self, start):
        result = start("broken:app", "def load():\n    return {}['key']\n\n\nload()\n")

        assert result.returncode == 1
        last = result.stderr.splitlines()[-1]
        assert last.startswith("Error: importing 'broken' failed: KeyError: 'key' (")
        assert last.endswith("broken.py, line 2)")
        assert result.stderr.count("broken.py") == 3
        assert "return {}['key']" in result.stderr
        assert "importlib" not in result.stderr
        assert "duly/worker" not in result.stderr

    def test_a_name_of_no_application_is_a_usage_error(self, start):
        missing = start("nothing_there:app", "")
        other = start("broken:app", "shop = 1\n")

        assert (missing.returncode, other.returncode) == (2, 2)
        assert "no module 'nothing_there'" in missing.stderr.splitlines()[-1]
        assert "has no 'app'" in other.stderr.splitlines()[-1]
        assert "Traceback" not in missing.stderr + other.stderr

    def test_the_error_is_written_as_json_on_request(self, start):
        result = start("broken:app", "{}['key']\n", "--json")

        (line,) = result.stderr.splitlines()
        assert result.returncode == 1
        assert json.loads(line)["error"] == "AppBroken"
        assert "KeyError" in json.loads(line)["traceback"]


@pytest.mark.stores("sqlite")
def test_settings_without_an_option_come_from_the_application_and_the_project(
    cli, folder, url, kept
):
    (folder / "other.py").write_text("from duly import Duly\napp = Duly(concurrency=3, grace=9)\n")
    (folder / "pyproject.toml").write_text("[tool.duly]\nconcurrency = 7\nprocesses = 2\n")

    cli("worker", "other:app", "--url", url, "--grace", "8")

    (call,) = kept
    settings = call.settings
    assert (settings.concurrency, settings.grace, call.processes) == (3, 8, 2)
