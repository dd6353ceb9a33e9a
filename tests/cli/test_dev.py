"""`duly dev`: a worker, schedules and the dashboard, restarted when the code changes."""

import json
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

from duly import Duly
from duly.cli import dashboard, dev
from duly.dashboard.server import listen
from duly_prove.faults import is_gone
from duly_prove.process_tree import wait_for

DULY = str(Path(sys.executable).with_name("duly"))
SHOP = """
from datetime import timedelta
from duly import Duly

app = Duly()


@app.every(timedelta(seconds=1))
def price():
    return {price}
"""


def test_only_python_files_of_the_project_are_watched(tmp_path):
    for name in ("shop.py", "notes.txt", ".venv/hidden.py", "pkg/__pycache__/x.py", "pkg/inner.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    found = dev._modification_times(tmp_path)

    assert {Path(name).name for name in found} == {"shop.py", "inner.py"}


def test_dev_requires_an_application(folder, cli):
    assert cli("dev").exit_code == 2
    assert cli("dev", "orders app").exit_code == 2


@pytest.fixture
def started(monkeypatch) -> list[Any]:
    """The programs that the command would have started."""
    programs: list[Any] = []

    def work(found: list[Any], _tell: Callable[[str], None]) -> None:
        programs.extend(found)
        raise KeyboardInterrupt

    monkeypatch.setattr(dev, "_work_until_changed", work)
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)
    return programs


def test_dev_reports_missing_dashboard_packages_and_continues(folder, cli, started, monkeypatch):
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None if name == "uvicorn" else name)

    result = cli("dev", "orders:app")

    assert "no dashboard, because uvicorn cannot be found" in result.stderr
    assert "pip install 'duly[web]'" in result.stderr
    assert [program.name for program in started] == ["worker"]
    alone = cli("dashboard", "--url", "sqlite:///x.db")
    assert (alone.exit_code, "pip install 'duly[web]'" in alone.stderr) == (1, True)


def test_the_dashboard_can_be_disabled_or_moved_to_another_address(folder, cli, started):
    cli("dev", "orders:app", "--no-dashboard")
    assert [program.name for program in started] == ["worker"]
    started.clear()

    with closing(listen("127.0.0.1", 0)) as taken:
        refused = cli("dev", "orders:app", "--port", str(taken.getsockname()[1]))

    assert (refused.exit_code, started) == (1, [])
    assert "cannot listen" in refused.stderr


def test_dev_prints_no_token_if_credentials_are_configured(folder, cli, started, monkeypatch):
    monkeypatch.setenv("DULY_DASHBOARD_USERS", "ann:secret-of-ann")

    result = cli("dev", "orders:app", "--port", "0", "--json")

    assert json.loads(result.stdout)["token"] is None
    assert started[1].secrets == {}


@pytest.fixture
def begin(tmp_path: Path, url: str) -> Iterator[Callable[..., Any]]:
    """Starts `duly dev` in a folder with a shop. The fixture stops it after the test."""
    running = []

    def start(*options: str) -> Any:
        kept = {name: text for name, text in os.environ.items() if name[:5] != "DULY_"}
        said = (tmp_path / "said").open("wb")
        process = subprocess.Popen(
            # Background processes often ignore Ctrl-C, and their children inherit that.
            ["/usr/bin/env", "--default-signal=INT", DULY, "dev", "shop:app", *options],
            cwd=tmp_path,
            env=kept | {"DULY_URL": url},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
        said.close()
        running.append(process)
        return SimpleNamespace(process=process, said=(tmp_path / "said").read_text)

    yield start
    for process in running:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)


def page(pages: dict[str, str], name: str) -> str:
    """Return a page of the dashboard, or an empty text if it is not served yet."""
    credentials = {"Authorization": f"Bearer {pages['token']}"}
    asked = Request(pages["address"] + name, headers=credentials)  # noqa: S310 - the dashboard of this test
    try:
        with urlopen(asked, timeout=20) as answer:  # noqa: S310 - as above
            return str(answer.read().decode())
    except URLError:
        return ""


@pytest.mark.process
@pytest.mark.timeout(120)
def test_one_command_runs_tasks_schedules_and_pages_and_reloads_changed_code(tmp_path, url, begin):
    shop = tmp_path / "shop.py"
    shop.write_text("raise SystemExit\n")

    began = begin("--json", "--port", "0")

    pages = json.loads(began.process.stdout.readline())
    assert wait_for(lambda: "the worker has ended; waiting for the code" in began.said(), 30)
    shop.write_text(SHOP.format(price=1))
    app = Duly(url)

    def results() -> set[str | None]:
        return {run.record.result for run in app.runs.list(state="succeeded")}

    assert wait_for(lambda: "1" in results(), 40), began.said()
    assert wait_for(lambda: "shop:price" in page(pages, "schedules"), 40), began.said()
    shop.write_text(SHOP.format(price="2 "))
    assert wait_for(lambda: "2" in results(), 40), began.said()
    app.close()

    began.process.send_signal(signal.SIGINT)
    assert began.process.wait(30) == 130
    lines = [json.loads(line) for line in began.said().splitlines()]
    assert sum("the code has changed" in line.get("message", "") for line in lines) == 2


SLOW = """
from pathlib import Path
from time import sleep
from duly import Duly

app = Duly()


@app.task
def pack():
    Path("begun").touch()
    while not Path("tape").exists():
        sleep(0.05)
"""


def ctrl_c(pid: int) -> None:
    """Send SIGINT to all foreground processes, as a terminal does."""
    os.killpg(pid, signal.SIGINT)


def sigterm(pid: int) -> None:
    """Send SIGTERM to one process, as a service manager does."""
    os.kill(pid, signal.SIGTERM)


@pytest.mark.process
@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(("end", "status"), [(ctrl_c, 130), (sigterm, 143)])
def test_every_way_of_stopping_dev_lets_a_body_finish_and_leaves_no_process(
    tmp_path, url, begin, end, status
):
    (tmp_path / "shop.py").write_text(SLOW)
    app = Duly(url)
    run = app.task(name="shop:pack")(lambda: None).enqueue()
    began = begin("--no-dashboard")
    assert wait_for((tmp_path / "begun").exists, 30), began.said()

    end(began.process.pid)
    assert not wait_for(lambda: run.refresh().state != "running", 0.5)
    (tmp_path / "tape").touch()

    assert began.process.wait(30) == status
    assert (run.refresh().state, run.record.claim_number) == ("succeeded", 1)
    assert {worker.state for worker in app.workers.list()} == {"stopped"}
    app.close()


def test_a_signal_that_nohup_ignores_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with dev._exit_on_signals(signal.SIGTERM, signal.SIGHUP):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert callable(signal.getsignal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.process
@pytest.mark.stores("sqlite-wal")
def test_a_killed_dev_leaves_no_process(tmp_path, url, begin):
    (tmp_path / "shop.py").write_text(SLOW)
    app = Duly(url)
    app.task(name="shop:pack")(lambda: None).enqueue()
    began = begin("--no-dashboard")
    assert wait_for((tmp_path / "begun").exists, 30), began.said()
    pids = [worker.pid for worker in app.workers.list()]

    began.process.kill()

    assert wait_for(lambda: all(is_gone(pid) for pid in pids), 20)
    app.close()
