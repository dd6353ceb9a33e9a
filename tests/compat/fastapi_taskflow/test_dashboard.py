"""The dashboard that `TaskAdmin` has beside its routes."""

import re
import sys

import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.testclient import TestClient

from duly.compat.fastapi_taskflow import TaskAdmin
from tests.compat.fastapi_taskflow.conftest import adding
from tests.servers.processes import wait_until

SOON = 20.0
ADMIN = ("admin", "secret of ours")
TOKEN_FIELD = re.compile(r'name="csrf" value="([0-9a-f]+)"')


def served(manager, **options) -> FastAPI:
    app = FastAPI()
    TaskAdmin(app, manager, **options)
    return app


def client_of(manager, **options) -> TestClient:
    return TestClient(served(manager, **options), base_url="http://localhost")


def failed(manager) -> str:
    """Have a task fail, and return its id."""

    @manager.task(name="shop.send")
    def send(address: str) -> None:
        raise ValueError("no such address")

    task_id = adding(manager).add_task(send, "a@b.c")
    run = manager.duly.runs.get(task_id)
    wait_until(lambda: run.refresh().is_final, seconds=SOON, what="it fails")
    return task_id


def test_it_shows_tasks_and_whoever_may_act_acts_by_name(manager):
    with client_of(manager, auth=ADMIN, title="Our tasks") as client:
        task_id = failed(manager)
        assert client.get("/tasks/dashboard/").status_code == 401
        client.auth = ADMIN
        overview = client.get("/tasks/dashboard")
        shown = client.get(f"/tasks/dashboard/runs/{task_id}")
        asking = {"kind": "run", "verb": "retry", "name": task_id}
        question = client.get("/tasks/dashboard/ask", params=asking)
        form = {"csrf": TOKEN_FIELD.search(question.text)[1]}
        manager.duly.queues.pause("default")
        answer = client.post(
            f"/tasks/dashboard/runs/{task_id}/retry",
            data=form,
            headers={"Origin": "http://localhost"},
            follow_redirects=False,
        )
        styles = re.search(r'href="([^"]+\.css)[^"]*"', overview.text)[1]
        assert client.get(styles).headers["content-type"].startswith("text/css")
        audit = client.get("/tasks/audit").json()
        assert client.get(f"/tasks/{task_id}").json()["status"] == "pending"
    assert overview.status_code == 200
    assert "Our tasks" in overview.text
    assert "no such address" in shown.text
    assert "a@b.c" not in shown.text
    assert (answer.status_code, answer.headers["location"][:22]) == (303, "/tasks/dashboard/runs/")
    assert ("retry", "admin") in [(act["action"], act["actor"]) for act in audit]


@pytest.mark.stores("sqlite-wal")
def test_a_dependency_of_ones_own_decides_and_arguments_are_shown_if_asked_for(manager):
    def token(x_token: str = Header("")) -> str:
        if x_token != "good":  # noqa: S105
            raise HTTPException(403)
        return "token"

    options = {"auth": token, "path": "/admin/tasks", "display_func_args": True}
    with client_of(manager, **options) as client:
        task_id = failed(manager)
        address = f"/admin/tasks/dashboard/runs/{task_id}"
        assert client.get(address).status_code == 403
        assert "a@b.c" in client.get(address, headers={"X-Token": "good"}).text


@pytest.mark.stores("sqlite-wal")
def test_under_a_prefix_its_pages_lead_to_each_other(manager):
    outer = FastAPI()
    outer.mount("/api", served(manager))

    with TestClient(outer, base_url="http://localhost") as client:
        page = client.get("/api/tasks/dashboard")

    assert 'href="/api/tasks/dashboard/runs"' in page.text


@pytest.mark.stores("sqlite-wal")
def test_without_its_packages_it_says_what_to_install(manager, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("duly.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)

    answer = client_of(manager).get("/tasks/dashboard")

    assert answer.status_code == 404
    assert "duly[web]" in answer.json()["detail"]
