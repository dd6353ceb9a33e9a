"""`duly_lifespan` under uvicorn and gunicorn: stopped, reloaded, preloaded and forced to exit."""

import http.client
import os
import signal
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from duly import Duly
from tests.integrations.fastapi import served
from tests.integrations.fastapi.server import Server
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.process, pytest.mark.timeout(240)]

ON_ONE = pytest.mark.stores("sqlite")
"""These tests are about the servers, not about the store."""
SOON = 30.0
SERVED = "tests.integrations.fastapi.served:app"
UVICORN = ["uvicorn", SERVED, "--port", "PORT"]
PATIENT = ["--timeout-worker-healthcheck", "60"]
"""On a busy machine a process may need longer to answer than uvicorn would wait."""


@pytest.fixture
def duly(store_url):
    served.duly.use_url(store_url)
    with closing(served.duly):
        yield served.duly


def begun(folder: Path) -> list[tuple[int, int]]:
    """Return the runs that have begun: the number of the run, and its process."""
    place = folder / "begun"
    lines = place.read_text().splitlines() if place.exists() else []
    return [(int(number), int(pid)) for number, pid in map(str.split, lines)]


def wait_until_begun(folder: Path, count: int) -> None:
    wait_until(lambda: len(begun(folder)) >= count, seconds=SOON, what=f"{count} bodies have begun")


def wait_until_logged(log: Path, text: str) -> None:
    wait_until(lambda: text in log.read_text(), seconds=SOON, what=f"the log says {text!r}")


def add(server: Server, folder: Path, number: int) -> str:
    return server.post(f"/runs/{number}?folder={folder}")


@pytest.mark.parametrize("at_once", [1, 10], ids=["most-wait", "all-have-begun"])
def test_forty_runs_of_stopped_processes_all_complete(duly: Duly, tmp_path, at_once):
    command = [*UVICORN, "--workers", "4", *PATIENT]
    limit = {"SERVED_AT_ONCE": str(at_once)}
    with Server(command, tmp_path / "log", duly, workers=4, **limit) as server:
        server.wait_until_all_serve()
        runs = [duly.runs.get(add(server, tmp_path, number)) for number in range(40)]
        wait_until_begun(tmp_path, 4 * at_once)
        server.stop()
    has_begun = {number for number, _ in begun(tmp_path)}
    states = Counter(run.refresh().state for run in runs)
    (tmp_path / "gate").touch()
    duly.worker().drain(timeout=SOON)

    assert states == {"queued": 40}
    assert [run.result(timeout=SOON) for run in runs] == list(range(40))
    assert len(has_begun) == 4 * at_once
    for number, run in enumerate(runs):
        ends = [each.outcome for each in run.refresh().attempts()]
        began = sum(each == number for each, _ in begun(tmp_path))
        if number in has_begun:
            assert ([end for end in ends if end != "handed_back"], began) == (
                ["stopped", "returned"],
                2,
            )
        else:
            assert (ends[-1], set(ends) - {"handed_back", "returned"}, began) == (
                "returned",
                set(),
                1,
            )


def test_a_preloaded_application_that_has_opened_its_store_serves(duly: Duly, tmp_path):
    command = ["gunicorn", "--preload", "-k", "uvicorn_worker.UvicornWorker", "-w", "2"]
    command += ["-b", "127.0.0.1:PORT", "--worker-tmp-dir", str(tmp_path), SERVED]
    log = tmp_path / "log"
    variables = {"SERVED_OPENS": "yes", "SERVED_LEASE": "3"}
    with Server(command, log, duly, workers=2, **variables) as server:
        server.wait_until_all_serve()
        runs = [duly.runs.get(add(server, tmp_path, number)) for number in range(20)]
        wait_until_begun(tmp_path, 20)
        # One of the two processes dies with its runs. The other must be unaffected.
        victim = min(server.serving())
        os.kill(victim, signal.SIGKILL)
        server.wait_until_all_serve(but=frozenset({victim}))
        (tmp_path / "gate").touch()
        assert [run.result(timeout=SOON) for run in runs] == list(range(20))
        wait_until(
            lambda: bool(duly.runs.list(task=served.tick)), seconds=SOON, what="the cron has fired"
        )
        server.stop()

    # Each instant of a cron runs once, though two processes fire it and one of them died.
    fired = [firing for firing in duly.schedules.firings("tick", limit=200) if firing.run_id]
    ticks = duly.runs.list(task=served.tick, limit=200)
    assert len(ticks) == len(fired) == len({firing.instant for firing in fired}) > 0
    assert {run.id for run in ticks} == {firing.run_id for firing in fired}
    outcomes = Counter(each.outcome for run in runs for each in run.refresh().attempts())
    assert outcomes["returned"] == 20
    assert outcomes.keys() <= {"returned", "lost"}
    assert "Traceback" not in log.read_text()


@ON_ONE
def test_the_runs_of_a_reloaded_application_continue_in_the_new_process(duly: Duly, tmp_path):
    source = tmp_path / "sources" / "reloaded.py"
    source.parent.mkdir()
    source.write_text(f"from {SERVED.partition(':')[0]} import app\n")
    command = ["uvicorn", "reloaded:app", "--port", "PORT", "--reload"]
    command += ["--reload-dir", str(source.parent), "--app-dir", str(source.parent)]
    with Server(command, tmp_path / "log", duly) as server:
        server.wait_until_all_serve()
        (before,) = server.serving()
        run = duly.runs.get(add(server, tmp_path, 1))
        wait_until_begun(tmp_path, 1)
        source.write_text(source.read_text() + "# changed\n")
        wait_until_begun(tmp_path, 2)
        (tmp_path / "gate").touch()
        assert run.result(timeout=SOON) == 1
        (after,) = server.serving()
        server.stop()

    assert before != after
    assert begun(tmp_path) == [(1, before), (1, after)]


@ON_ONE
def test_a_server_that_is_forced_to_exit_leaves_its_runs_to_other_workers(duly: Duly, tmp_path):
    log = tmp_path / "log"
    with Server(UVICORN, log, duly, SERVED_GRACE="600") as server:
        run = duly.runs.get(add(server, tmp_path, 1))
        wait_until_begun(tmp_path, 1)
        with closing(http.client.HTTPConnection("127.0.0.1", server.port)) as client:
            client.request("POST", "/hang")
            wait_until_logged(log, "a request hangs")
            pid = server.supervisor()
            os.kill(pid, signal.SIGINT)
            wait_until_logged(log, "Waiting for connections to close")
            # While a request is open, a second SIGINT has uvicorn skip the lifespan's end. Since
            # Python 3.12, it waits even then until the client hangs up.
            os.kill(pid, signal.SIGINT)
        before = time.monotonic()
        server.wait_until_gone()
        took = time.monotonic() - before
    (tmp_path / "gate").touch()
    state = run.refresh().state
    duly.worker().drain(timeout=SOON)

    assert took < SOON
    assert state == "queued"
    assert [each.outcome for each in run.refresh().attempts()] == ["stopped", "returned"]
