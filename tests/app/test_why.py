"""Why a run is not running, as the application, a newcomer and the command line are told."""

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
    """A task that returns, or raises as long as it is told to."""

    @app.task(name="shop:send", retries=Retry(3, base=600))
    def send(ok: bool = True) -> None:  # noqa: FBT001, FBT002 - as tasks are called
        if not ok:
            raise OSError("no route")

    return send


def test_a_run_of_later_says_when(send):
    assert send.using(delay=3600).enqueue().why().cause == "later"


def test_a_run_of_a_paused_queue_says_so(app, send):
    app.queues.pause("default")

    assert "queue 'default' is paused" in str(send.enqueue().why())


def test_a_run_that_failed_says_what_it_raised_and_when_it_is_tried_again(app, send):
    run = send.enqueue(ok=False)
    app.worker().drain(timeout=20)

    reason = run.why()

    assert reason.cause == "backing_off"
    assert "OSError: no route" in reason.sentence


def test_a_run_that_sleeps_says_in_which_step(app):
    @app.task(name="rest")
    def rest() -> None:
        sleep("a-while", 3600)

    run = rest.enqueue()
    app.worker().drain(timeout=20)

    assert run.why().cause == "sleeping"


def test_a_run_without_workers_says_which_store_it_waits_in(app, send):
    reason = send.enqueue().why()

    assert reason.cause == "no_worker"
    assert f"on {app.store.shown_url}; start one" in reason.sentence


def test_a_run_that_live_workers_cannot_run_says_what_they_lack(app, send, store_url):
    other = Duly(store_url)

    @other.task(name="store:send")
    def moved() -> None: ...

    with other.worker():
        run = send.enqueue()
        assert "live workers know store:send" in str(run.why())
    other.close()

    with app.worker(queues="mail"):
        assert run.why().cause == "other_queue"


def test_a_run_that_is_running_says_where(app):
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


def test_who_waits_for_a_run_that_nobody_claims_is_told_why_once(send, caplog, monkeypatch):
    monkeypatch.setattr(duly.run, "UNCLAIMED_SECONDS", 0.01)

    with caplog.at_level(logging.WARNING, "duly"), pytest.raises(WorkerTimeout) as caught:
        send.enqueue().result(timeout=0.2)

    (told,) = [record.getMessage() for record in caplog.records]
    assert "(shop:send) has not started yet: no worker has been seen" in told
    assert "is still queued after 0.2 s: no worker has been seen" in str(caught.value)


# -- as a newcomer meets it: one file, two terminals --


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
    """Run a program in that folder to its end."""
    return subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )


def test_a_program_whose_worker_is_missing_is_told_to_start_one(folder):
    told = in_terminal(folder, "shop.py", "0.1").stderr

    assert f"no worker has been seen on {folder / 'duly.db'}; start one" in told


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


def test_a_command_in_another_folder_says_which_file_is_missing(tmp_path):
    told = in_terminal(tmp_path, *DULY, "why", "00000000-0000-7000-8000-00000000dead")

    assert (told.returncode, f"no database at {tmp_path}" in told.stderr) == (1, True)


LATER = SHOP.replace("timeout=float(sys.argv[1])", "")
OTHER = """
from duly import Duly

app = Duly()


@app.task(name="store:send")
def send(number: int) -> int:
    return number
"""
CAUSES = {
    "nobody": ("no_worker", "no worker has been seen on "),
    "other_queue": (
        "other_queue",
        "serves queue 'mail'; these workers serve default: start one with -q mail",
    ),
    "other_name": ("not_registered", "no live worker knows task 'shop:send' on "),
    "other_file": ("no_worker", "if a worker is running, it uses another store"),
}


class Newcomer:
    """Somebody with one file and two terminals, who made a mistake."""

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
        """Wait until the worker has begun; return which store it says that it uses."""
        if self.worker is None or self.worker.stderr is None:
            return ""
        first, _ = (self.worker.stderr.readline() for _ in range(2))
        return first

    def run_program(self) -> None:
        self.program = self._start(self.folder, "shop.py")

    def is_told(self) -> str:
        """Return what the program says while it waits for its result."""
        assert self.program.stderr is not None
        return self.program.stderr.readline()

    def asks_why(self, told: str) -> dict[str, str]:
        """Ask about the run that the program has named."""
        (run_id,) = re.findall(r"run (\S+) \(shop:send\)", told)
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
def test_a_newcomer_who_waits_is_told_the_cause_after_five_seconds_and_so_by_why(tmp_path):
    newcomers = {mistake: Newcomer(tmp_path / mistake, mistake) for mistake in CAUSES}
    stores = {mistake: each.see_worker() for mistake, each in newcomers.items()}
    for each in newcomers.values():
        each.run_program()
    try:
        told = {mistake: each.is_told() for mistake, each in newcomers.items()}
        why = {mistake: each.asks_why(told[mistake]) for mistake, each in newcomers.items()}
    finally:
        for each in newcomers.values():
            each.leave()

    for mistake, (cause, words) in CAUSES.items():
        assert "(shop:send) has not started yet: " in told[mistake]
        assert words in told[mistake]
        assert words in why[mistake]["sentence"]
        assert why[mistake]["cause"] == cause
    assert str(tmp_path / "nobody" / "duly.db") in told["nobody"]
    assert str(tmp_path / "other_file" / "duly.db") in told["other_file"]
    assert str(tmp_path / "other_file" / "elsewhere" / "duly.db") in stores["other_file"]
