"""Why a run is not running: the answers of the application, a program and the command line."""

import json
import logging
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import duly.run
from duly import Duly, Retry, sleep
from duly.errors import WorkerTimeout

DULY = ("-c", "from duly.cli import main; main()")
SHOP = """
import sys
from duly import Duly

app = Duly()


@app.task(queue="mail")
def send(number: int) -> int:
    return number * 2


if __name__ == "__main__":
    print(send.enqueue(21).result(timeout=float(sys.argv[1])))
"""


@pytest.fixture
def send(app: Duly):
    """A task that raises if its argument is false."""

    @app.task(name="shop:send", retries=Retry(3, base=600))
    def send(ok: bool = True) -> None:  # noqa: FBT001, FBT002 - as tasks are called
        if not ok:
            raise OSError("no route")

    return send


def test_why_reports_that_a_delayed_run_is_not_due(send):
    assert send.using(delay=3600).enqueue().why().cause == "later"


def test_why_names_the_paused_queue_of_a_run(app, send):
    app.queues.pause("default")

    assert "queue 'default' is paused" in str(send.enqueue().why())


def test_why_names_the_error_of_a_run_that_waits_for_its_retry(app, send):
    run = send.enqueue(ok=False)
    app.worker().drain(timeout=20)

    reason = run.why()

    assert reason.cause == "backing_off"
    assert "OSError: no route" in reason.sentence


def test_why_reports_that_a_run_is_sleeping(app):
    @app.task(name="rest")
    def rest() -> None:
        sleep("a-while", 3600)

    run = rest.enqueue()
    app.worker().drain(timeout=20)

    assert run.why().cause == "sleeping"


def test_why_names_the_store_of_a_run_without_workers(app, send):
    reason = send.enqueue().why()

    assert reason.cause == "no_worker"
    assert f"on {app.store.shown_url}; start one" in reason.sentence


def test_why_explains_that_live_workers_cannot_execute_a_run(app, send, store_url):
    other = Duly(store_url)

    @other.task(name="store:send")
    def moved() -> None: ...

    with other.worker():
        run = send.enqueue()
        assert "live workers know store:send" in str(run.why())
    other.close()

    with app.worker(queues="mail"):
        assert run.why().cause == "other_queue"


def test_why_names_the_process_of_an_active_run(app):
    begun, end = threading.Event(), threading.Event()

    @app.task(name="stay")
    def stay() -> None:
        begun.set()
        end.wait(20)

    with app.worker(concurrency=1):
        run = stay.enqueue()
        assert begun.wait(20)
        reason = run.why()
        end.set()

    assert (reason.cause, f"pid {os.getpid()}" in reason.sentence) == ("running", True)
    assert run.why().cause == "ended"


def test_a_caller_that_waits_for_an_unclaimed_run_logs_the_cause_once(send, caplog, monkeypatch):
    monkeypatch.setattr(duly.run, "UNCLAIMED_SECONDS", 0.01)

    with caplog.at_level(logging.WARNING, "duly"), pytest.raises(WorkerTimeout) as caught:
        send.enqueue().result(timeout=0.2)

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "(shop:send) has not started yet: no worker has been seen" in warning
    assert "is still queued after 0.2 s: no worker has been seen" in str(caught.value)


# -- a first program: one file, two terminals --


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with shop.py."""
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "shop.py").write_text(SHOP)
    return folder


def environment() -> dict[str, str]:
    return {name: text for name, text in os.environ.items() if not name.startswith("DULY_")}


def in_terminal(folder: Path, *command: str) -> "subprocess.CompletedProcess[str]":
    """Run a program in that folder until it ends."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def test_a_program_without_a_worker_prints_advice_to_start_one(folder):
    output = in_terminal(folder, "shop.py", "0.1").stderr

    assert f"no worker has been seen on {folder / 'duly.db'}; start one" in output


@pytest.mark.process
def test_a_program_and_the_worker_that_imports_it_agree_on_names(folder):
    in_terminal(folder, "shop.py", "0")
    app = Duly(f"sqlite:///{folder / 'duly.db'}")
    (run,) = app.runs.list()
    worker = in_terminal(folder, *DULY, "worker", "shop:app", "--drain")

    assert worker.stderr.startswith(f"duly worker: shop:app on {folder / 'duly.db'}\n")
    assert worker.returncode == 0, worker.stderr
    assert run.result(timeout=0) == 42
    app.close()


def test_a_command_in_another_folder_names_the_missing_file(tmp_path):
    output = in_terminal(tmp_path, *DULY, "why", "00000000-0000-7000-8000-00000000dead")

    assert (output.returncode, f"no database at {tmp_path}" in output.stderr) == (1, True)


LATER = SHOP.replace("timeout=float(sys.argv[1])", "")
OTHER = """
from duly import Duly

app = Duly()


@app.task(name="store:send")
def send(number: int) -> int:
    return number
"""
CAUSES = {
    "no_worker": ("no_worker", "no worker has been seen on "),
    "other_queue": (
        "other_queue",
        "serves queue 'mail'; these workers serve default: start one with -q mail",
    ),
    "other_name": ("not_registered", "no live worker knows task 'shop:send' on "),
    "other_file": ("no_worker", "if a worker is running, it uses another store"),
}


class Newcomer:
    """A user with one file and two terminals who made a mistake."""

    def __init__(self, folder: Path, mistake: str) -> None:
        self.folder = folder
        folder.mkdir()
        (folder / "shop.py").write_text(LATER)
        (folder / "store.py").write_text(OTHER)
        command = {
            "other_queue": ["worker", "shop:app", "-q", "default"],
            "other_name": ["worker", "store:app"],
            "other_file": ["worker", "shop:app"],
        }.get(mistake)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        place = elsewhere if mistake == "other_file" else folder
        self.worker = None if command is None else self._start(place, *DULY, *command)

    def see_worker(self) -> str:
        """Wait until the worker has started. Return its first line, which names its store."""
        if self.worker is None or self.worker.stderr is None:
            return ""
        first, _ = (self.worker.stderr.readline() for _ in range(2))
        return first

    def run_program(self) -> None:
        self.program = self._start(self.folder, "shop.py")

    def first_log_line(self) -> str:
        """Return the line that the program logs while it waits for its result."""
        assert self.program.stderr is not None
        return self.program.stderr.readline()

    def ask_why(self, line: str) -> dict[str, str]:
        """Return the answer of `duly why` for the run that the program named."""
        (run_id,) = re.findall(r"run (\S+) \(shop:send\)", line)
        found: dict[str, str] = json.loads(
            in_terminal(self.folder, *DULY, "why", run_id, "--json").stdout
        )
        return found

    def leave(self) -> None:
        for process in filter(None, (self.program, self.worker)):
            process.terminate()
            process.communicate(timeout=30)

    def _start(self, place: Path, *command: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=place,
            env=environment() | {"PYTHONPATH": f"{self.folder}:{os.environ.get('PYTHONPATH', '')}"},
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_newcomers_program_and_why_report_the_same_cause(tmp_path):
    newcomers = {mistake: Newcomer(tmp_path / mistake, mistake) for mistake in CAUSES}
    stores = {mistake: each.see_worker() for mistake, each in newcomers.items()}
    for each in newcomers.values():
        each.run_program()
    try:
        lines = {mistake: each.first_log_line() for mistake, each in newcomers.items()}
        why = {mistake: each.ask_why(lines[mistake]) for mistake, each in newcomers.items()}
    finally:
        for each in newcomers.values():
            each.leave()

    for mistake, (cause, words) in CAUSES.items():
        assert "(shop:send) has not started yet: " in lines[mistake]
        assert words in lines[mistake]
        assert words in why[mistake]["sentence"]
        assert why[mistake]["cause"] == cause
    assert str(tmp_path / "no_worker" / "duly.db") in lines["no_worker"]
    assert str(tmp_path / "other_file" / "duly.db") in lines["other_file"]
    assert str(tmp_path / "other_file" / "elsewhere" / "duly.db") in stores["other_file"]
