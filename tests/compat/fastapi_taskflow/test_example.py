"""The snippets of seed 003 work as they are in the example."""

import sqlite3
from contextlib import closing

import pytest
from fastapi.testclient import TestClient

from tests.compat.fastapi_taskflow.uvicorn_server import SOON, ask, uvicorn
from tests.servers.processes import wait_until


@pytest.mark.stores("sqlite-wal")
def test_the_snippets_run_with_only_the_import_changed(store_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from examples import taskflow_app as shop  # noqa: PLC0415 - opens files

    with TestClient(shop.app) as client:
        ids = [client.post("/signup/7").json()["task_id"], *client.post("/nightly/4").json()]
        for task_id in ids:
            wait_until(
                lambda task_id=task_id: (
                    client.get(f"/tasks/{task_id}").json()["status"] == "success"
                ),
                seconds=20,
                what=f"{task_id} succeeds",
            )
    assert shop.email_client.sent == {"welcome to user7@example.com": 1}
    assert shop.db.execute("SELECT id, stock FROM inventory").fetchall() == [(4, 40)]
    assert shop.db.execute("SELECT id FROM reports").fetchall() == [(4,)]
    assert (tmp_path / "tasks.db").exists()
    shop.db.close()
    shop.task_manager.duly.close()


@pytest.mark.process
def test_the_tasks_of_the_snippets_survive_a_killed_uvicorn_process(tmp_path):
    """A task that was interrupted and must not run twice is listed. All other tasks have run."""
    served = ("examples.taskflow_app:app", tmp_path)
    with uvicorn(*served, SHOP_DB="shop.db") as (server, port):
        ids = [each for product in range(5) for each in ask(port, f"/nightly/{product}", "POST")]
        mail = ask(port, "/signup/7", "POST")["task_id"]
        server.kill()
        server.wait(SOON)
    with uvicorn(*served, SHOP_DB="shop.db") as (_, port):

        def statuses() -> list[str]:
            return [ask(port, f"/tasks/{task_id}")["status"] for task_id in [*ids, mail]]

        wait_until(
            lambda: not {"pending", "running"} & set(statuses()),
            seconds=SOON,
            what="all end",
        )
        *nightly, welcome = statuses()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database:
        stock = database.execute("SELECT id, stock FROM inventory ORDER BY id").fetchall()

    assert nightly == ["success"] * len(ids)
    assert welcome in {"success", "interrupted"}
    assert stock == [(product, 10 * product) for product in range(5)]
