"""What becomes of tasks when their process is stopped or killed: the table of seed 003, and more.

One real uvicorn process has a task of every kind running and another one waiting; then it ends.
"""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from duly import Duly
from duly.integrations.taskflow import TaskStatus
from tests.integrations.taskflow.served import KINDS, build
from tests.servers.processes import free_port, wait_until

ROOT = Path(__file__).parents[3]
SOON = 30.0
TASKS = [f"{kind}-{where}" for kind in KINDS for where in ("loop", "thread")]

pytestmark = pytest.mark.process


@contextmanager
def uvicorn(url: str, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Serve the application from a process of its own."""
    port = free_port()
    command = ["uvicorn", "tests.integrations.taskflow.served:app", "--log-level", "critical"]
    environment = os.environ | {
        "DULY_URL": url,
        "SERVED_LOG": str(log),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", *command, "--port", str(port)],
        env=environment,
        cwd=log.parent,
        start_new_session=True,
    )
    try:
        yield server, port
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def is_answered(port: int) -> bool:
    with suppress(OSError):
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/tasks/metrics").status == 200
    return False


def post(port: int, path: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", method="POST")
    with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
        return json.load(answer)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_the_shutdown_table_holds(how, store_url, tmp_path):
    """Rows 1 to 4; T1, T8, T13, T14 and T19 in one go."""
    log = tmp_path / "log"
    log.touch()
    ids = {}

    # Given: of every kind one that has begun, and one that waits behind it.
    with uvicorn(store_url, log) as (server, port):
        wait_until(lambda: is_answered(port), seconds=SOON, what="the application answers")
        for task in TASKS:
            ids[task, "first"] = post(port, f"/add/{task}/first")
        wait_until(
            lambda: len(log.read_text().splitlines()) == len(TASKS), seconds=SOON, what="all begin"
        )
        for task in TASKS:
            ids[task, "second"] = post(port, f"/add/{task}/second")

        # When: its process ends, and the application starts anew.
        server.send_signal(how)
        server.wait(timeout=SOON)
    with closing(Duly(store_url)) as duly:
        app, manager = build(store_url, log, hangs=False)
        with closing(manager.duly), TestClient(app) as client:
            for run_id in ids.values():
                wait_until(
                    lambda run_id=run_id: duly.runs.get(run_id).is_final,
                    seconds=SOON,
                    what=f"{run_id} ends",
                )
            found = {which: manager.store.get(run_id) for which, run_id in ids.items()}
            begun = Counter(log.read_text().splitlines())

            # Then: what was persisted and may be begun twice runs again.
            for where in ("loop", "thread"):
                assert found[f"requeued-{where}", "first"].status is TaskStatus.SUCCESS
                assert found[f"persisted-{where}", "first"].status is TaskStatus.INTERRUPTED
                for kind in ("requeued", "persisted"):
                    assert found[f"{kind}-{where}", "second"].status is TaskStatus.SUCCESS
                for which in ("first", "second"):
                    lost = found[f"plain-{where}", which]
                    assert (lost.status, lost.cause) == (TaskStatus.INTERRUPTED, "not_persisted")
                    why = "broken off" if which == "first" else "had not begun"
                    assert why in lost.error
            assert begun == Counter(
                {
                    "requeued first": 4,
                    "requeued second": 2,
                    "persisted first": 2,
                    "persisted second": 2,
                    "plain first": 2,
                }
            )
            assert all(
                (each.tags, each.priority) == ({"which": which}, 3)
                for (_, which), each in found.items()
            )

            # And what was not to be persisted runs once somebody asks for it.
            lost = ids["plain-loop", "second"]
            assert client.get(f"/tasks/{lost}").json()["status"] == "interrupted"
            duly.runs.retry(lost).result(timeout=SOON)
            assert log.read_text().splitlines()[-1] == "plain second"
