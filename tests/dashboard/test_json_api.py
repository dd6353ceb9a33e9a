"""The dashboard's JSON API and its OpenAPI schema. No request causes a server error."""

import base64
import json

import pytest
import schemathesis
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from duly.compat.fastapi_taskflow import TaskAdmin, TaskManager
from duly.integrations.fastapi import duly_router
from tests.dashboard.conftest import client_of, opened

NAMES = ("runs", "dead", "schedules", "queues", "workers")


def test_the_json_api_returns_the_data_of_the_pages(busy, client):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    secret = busy.send_receipt.enqueue(1, "a@b.c", card="4111-2222")

    found = {name: client.get(f"/api/{name}").json() for name in NAMES}
    one = client.get(f"/api/runs/{run.id}").json()

    assert [group["count"] for group in found["dead"]["groups"]] == [12, 1]
    assert {queue["name"] for queue in found["queues"]["queues"]} == {"mail", "reports"}
    assert len(found["schedules"]["schedules"]) == 3
    assert found["workers"]["workers"][0]["state"] == "stopped"
    assert (one["state"], one["arguments"]) == (
        "failed",
        {"args": [], "kwargs": {"order_id": 4711}},
    )
    assert [step["name"] for step in one["steps"]][:2] == ["reserve-stock", "let-them-think"]
    assert "Traceback" in one["attempts"][-1]["traceback"]
    shown = client.get(f"/api/runs/{secret.id}")
    assert "4111-2222" not in shown.text
    assert shown.json()["arguments"]["kwargs"]["card"] == "***"
    assert (
        client_of(busy.app, show_arguments=False).get(f"/api/runs/{run.id}").json()["arguments"]
        is None
    )


def test_json_lists_continue_by_cursor_and_accept_the_filters_of_the_page(busy, client):
    first = client.get("/api/runs", params={"q": "state:failed", "limit": 9}).json()
    rest = {"q": "state:failed", "limit": 9, "before": first["next"]}
    second = client.get("/api/runs", params=rest).json()

    assert (len(first["runs"]), len(second["runs"]), second["next"]) == (9, 4, None)
    names = client.get("/api/schedules", params={"limit": 2}).json()
    assert names["next"] == "nightly-report"
    after = client.get("/api/schedules", params={"after": names["next"]}).json()["schedules"]
    assert [each["name"] for each in after] == ["poll-the-bank"]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/runs/nobody", 404),
        ("/api/runs?q=colour:red", 422),
        ("/api/runs?limit=0", 422),
        ("/api/runs?limit=1e3", 422),
        ("/api/dead?window=always", 422),
        ("/api/schedules?after=%00", 422),
    ],
)
@pytest.mark.stores("sqlite")
def test_an_invalid_json_request_returns_an_explanation(client, path, status):
    answer = client.get(path)

    assert answer.status_code == status
    assert answer.json()["detail"]


@pytest.mark.stores("sqlite")  # Access does not depend on the database.
def test_viewers_without_access_get_no_json(shop):
    client = client_of(shop.app, auth=lambda _request: None)

    assert client.get("/api/runs").status_code == 403
    assert client.get("/api/openapi.json").status_code == 403
    assert client_of(shop.app).post("/api/runs").status_code in {403, 405}


CHECKS = [response_schema_conformance, status_code_conformance]


def broken_by(schema, headers, *, conforms):
    """Send requests inside and outside the schema. Return those that were answered with a 5xx."""
    found = []
    for operation in schema.get_all_operations():

        @settings(
            max_examples=8,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.ok().as_strategy())
        def ask(case):
            answer = case.call(headers=headers)
            if answer.status_code >= 500:
                found.append((case.method, case.path, answer.status_code))
            elif conforms:
                case.validate_response(answer, checks=CHECKS)

        ask()
    return found


def test_no_request_breaks_the_dashboards_json(busy):
    pages = opened(busy.app)
    headers = {"Host": "localhost"}
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", pages, headers=headers)

    assert broken_by(schema, headers, conforms=True) == []


def test_no_request_breaks_the_router(busy):
    api = FastAPI()
    api.include_router(duly_router(busy.app, auth=None, write=True), prefix="/duly")
    schema = schemathesis.openapi.from_asgi("/openapi.json", api)

    assert broken_by(schema, {}, conforms=False) == []


@pytest.mark.stores("sqlite")
def test_no_request_breaks_the_routes_of_task_admin(shop):
    manager = TaskManager(duly=shop.app)

    @manager.task(name="send")
    def send(address: str) -> None: ...

    api = FastAPI()
    TaskAdmin(api, manager, auth=("ann", "secret of ann"))
    headers = {"Authorization": f"Basic {base64.b64encode(b'ann:secret of ann').decode()}"}

    async def served(scope, receive, send):
        # The manager starts once, not for every request.
        if scope["type"] != "lifespan":
            await api(scope, receive, send)
            return
        for stage in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{stage}.complete"})

    with TestClient(api):
        schema = schemathesis.openapi.from_asgi("/openapi.json", served)
        assert broken_by(schema, headers, conforms=False) == []


def test_dead_letters_are_exported_line_by_line(busy, client):
    group = busy.app.dead.groups(task="shop.orders:charge")[0]
    place = {"task": group.task, "fingerprint": group.fingerprint}

    every = client.get("/dead/export")
    one = client.get("/dead/export", params=place)

    assert "dead-letters.jsonl" in every.headers["content-disposition"]
    found = [json.loads(line) for line in one.text.splitlines()]
    assert (len(every.text.splitlines()), len(found)) == (13, 12)
    assert found[0]["task"] == "shop.orders:charge"
    assert found[0]["arguments"] == {"args": [], "kwargs": {"order_id": 11}}
    assert "Traceback" in found[0]["traceback"]
    assert client.get("/dead/export", params={"task": "none"}).text == ""
