"""The snippets of seed 003, as they stand in the example, do what they say."""

import pytest
from fastapi.testclient import TestClient

from tests.servers.processes import wait_until


@pytest.mark.stores("sqlite-wal")
def test_the_snippets_run_with_only_the_import_changed(store_url, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    from examples import taskflow_app as shop  # noqa: PLC0415 - it opens files where it is

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
