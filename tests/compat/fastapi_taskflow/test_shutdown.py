"""Tasks whose process is stopped or killed: the table of seed 003, and more.

One real uvicorn process has a task of every kind running and another one waiting. Then it ends.
"""

import signal
from collections import Counter
from contextlib import closing

import pytest
from fastapi.testclient import TestClient

from duly import Duly
from duly.compat.fastapi_taskflow import TaskStatus
from tests.compat.fastapi_taskflow.served import KINDS, build, wish
from tests.compat.fastapi_taskflow.uvicorn_server import SOON, ask, uvicorn
from tests.servers.processes import wait_until

SERVED = "tests.compat.fastapi_taskflow.served:app"
TASKS = [f"{kind}-{where}" for kind in KINDS for where in ("loop", "thread")]

pytestmark = [pytest.mark.process, pytest.mark.timeout(180)]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_the_documented_shutdown_table_is_correct(how, store_url, tmp_path):
    """The table in docs/how-to/taskflow.md: the fate of running, waiting and one-time tasks."""
    log = tmp_path / "log"
    log.touch()
    ids = {}

    # Given: one running task of every kind, and one that waits for it.
    variables = {"DULY_URL": store_url, "SERVED_LOG": str(log)}
    with uvicorn(SERVED, tmp_path, **variables) as (server, port):
        for task in TASKS[1:]:
            ids[task, "first"] = ask(port, f"/add/{task}/first", "POST")
        ask(port, f"/once/{TASKS[0]}/first", "POST")
        failed = ask(port, "/fail", "POST")
        wait_until(
            lambda: len(log.read_text().splitlines()) == len(TASKS), seconds=SOON, what="all begin"
        )
        with closing(Duly(store_url)) as duly:
            (once,) = duly.runs.list(task=TASKS[0])
            ids[TASKS[0], "first"] = once.id
            wait_until(lambda: duly.runs.get(failed).is_final, seconds=SOON, what="one has failed")
        for task in TASKS:
            ids[task, "second"] = ask(port, f"/add/{task}/second", "POST")

        # When: the process ends, and the application restarts.
        server.send_signal(how)
        server.wait(timeout=SOON)
    with closing(Duly(store_url)) as duly:
        app, manager = build(store_url, log)
        with closing(manager.duly), TestClient(app) as client:
            for run_id in ids.values():
                wait_until(
                    lambda run_id=run_id: duly.runs.get(run_id).is_final,
                    seconds=SOON,
                    what=f"{run_id} ends",
                )
            found = {which: manager.store.get(run_id) for which, run_id in ids.items()}
            begun = Counter(log.read_text().splitlines())

            # Then: tasks that were persisted and may begin twice run again.
            for where in ("loop", "thread"):
                assert found[f"requeued-{where}", "first"].status is TaskStatus.SUCCESS
                assert found[f"persisted-{where}", "first"].status is TaskStatus.INTERRUPTED
                for kind in ("requeued", "persisted"):
                    assert found[f"{kind}-{where}", "second"].status is TaskStatus.SUCCESS
                for which in ("first", "second"):
                    lost = found[f"plain-{where}", which]
                    assert (lost.status, lost.cause) == (TaskStatus.INTERRUPTED, "not_persisted")
                    why = "interrupted while it ran" if which == "first" else "had not started"
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
            for (task, which), each in found.items():
                kept = {"tags": each.tags, "priority": each.priority}
                assert kept | {"idempotency_key": each.idempotency_key} == wish(task, which)
                assert each.queue == task
            assert "before the end" in manager.store.get(failed).stacktrace

            # A task that was not persisted runs after a retry.
            lost = ids["plain-loop", "second"]
            assert client.get(f"/tasks/{lost}").json()["status"] == "interrupted"
            duly.runs.retry(lost).result(timeout=SOON)
            assert log.read_text().splitlines()[-1] == "plain second"
