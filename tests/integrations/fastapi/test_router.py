"""`duly_router`: runs and schedules as JSON, and the requests that it refuses."""

from contextlib import closing
from datetime import date, datetime
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from fastapi.testclient import TestClient

from duly import Duly, Task
from duly.integrations.fastapi import duly_router, router

SOON = 20.0
ON_ONE = pytest.mark.stores("sqlite-wal")
"""These tests are about HTTP, not about the store."""


@pytest.fixture
def duly(store_url):
    with closing(Duly(store_url)) as duly:

        @duly.task(name="divide", redact=("note",))
        def divide(number: int, by: int, note: str = "") -> float:
            return number / by

        @duly.task(name="age")
        def age(born: date) -> int:
            return 2030 - born.year

        @duly.cron("0 2 * * *", name="nightly")
        def nightly() -> None: ...

        yield duly


def client_of(duly, **options) -> TestClient:
    api = FastAPI()
    api.include_router(
        duly_router(duly, **{"auth": None, "write": True, **options}), prefix="/duly"
    )
    return TestClient(api)


def enqueued(duly, name, *args, **kwargs) -> str:
    return Task(duly, duly.registry.get(name)).enqueue(*args, **kwargs).id


def test_runs_are_listed_by_filter_and_page(duly):
    ids = [enqueued(duly, "divide", number, by=1) for number in range(5)]
    other = enqueued(duly, "age", date(2000, 1, 31))
    client = client_of(duly)
    first = client.get("/duly/runs", params={"task": "divide", "limit": 3}).json()
    assert [run["id"] for run in first["runs"]] == ids[:1:-1]
    rest = client.get("/duly/runs", params={"task": "divide", "cursor": first["cursor"]}).json()
    assert [run["id"] for run in rest["runs"]] == ids[1::-1]
    assert rest["cursor"] is None
    queued = client.get("/duly/runs", params={"state": ["queued", "failed"]}).json()["runs"]
    assert queued[0]["id"] == other
    assert len(queued) == 6
    assert client.get("/duly/runs", params={"state": "succeeded"}).json()["runs"] == []


def test_a_page_of_a_rare_task_reads_a_few_runs_and_returns_a_cursor(duly, monkeypatch):
    """Otherwise one request would read a history of a million runs."""
    wanted = enqueued(duly, "age", date(2000, 1, 31))
    for number in range(5):
        enqueued(duly, "divide", number, by=1)
    monkeypatch.setattr(router, "SCAN_RUNS", 3)
    pages, cursor = [], None
    while not pages or cursor is not None:
        query = {"task": "age"} | ({"cursor": cursor} if cursor else {})
        page = client_of(duly).get("/duly/runs", params=query).json()
        pages.append([run["id"] for run in page["runs"]])
        cursor = page["cursor"]

    assert pages[:2] == [[], [wanted]]
    assert [each for page in pages for each in page] == [wanted]


def test_a_run_is_shown_with_its_attempts_and_without_secrets(duly):
    run = enqueued(duly, "divide", 1, by=0, note="hush")
    duly.worker().drain(timeout=SOON)
    shown = client_of(duly, show_arguments=True).get(f"/duly/runs/{run}").json()
    assert shown["state"] == "failed"
    assert shown["arguments"]["kwargs"] == {"number": 1, "by": 0, "note": "***"}
    assert [attempt["outcome"] for attempt in shown["attempts"]] == ["raised"]
    assert "ZeroDivisionError" in shown["traceback"]
    assert datetime.fromisoformat(shown["created_at"]).tzinfo is not None
    hidden = client_of(duly).get(f"/duly/runs/{run}").json()
    assert hidden["arguments"] is None
    assert hidden["result"] is None


def test_a_failed_run_is_retried_with_other_arguments(duly):
    run = enqueued(duly, "divide", 6, by=0)
    duly.worker().drain(timeout=SOON)
    client = client_of(duly)
    how = {"reason": "the bug is mended", "arguments": {"kwargs": {"number": 6, "by": 3}}}
    answer = client.post(f"/duly/runs/{run}/retry", json=how)
    assert answer.json()["state"] == "queued"
    again = client.post(f"/duly/runs/{run}/retry", json={})
    assert again.status_code == 409
    duly.worker().drain(timeout=SOON)
    assert duly.runs.get(run).result() == 2
    acts = [(act.actor, act.reason) for act in duly.store.list_audit_entries(run, 10)]
    assert [reason for _, reason in acts] == ["the bug is mended"]


def test_values_without_a_json_form_are_written_as_they_are_displayed(duly):
    run = enqueued(duly, "age", date(1999, 1, 31))
    duly.worker().drain(timeout=SOON)
    client = client_of(duly, show_arguments=True)
    shown = client.get(f"/duly/runs/{run}").json()["arguments"]
    assert shown == {"args": [], "kwargs": {"born": {"$date": "1999-01-31"}}}
    shown["kwargs"]["born"] = {"$date": "2000-01-31"}
    client.post(f"/duly/runs/{run}/retry", json={"arguments": shown})
    duly.worker().drain(timeout=SOON)
    assert duly.runs.get(run).result() == 30


def test_a_queued_run_is_cancelled(duly):
    run = enqueued(duly, "divide", 1, by=1)
    client = client_of(duly)
    assert client.post(f"/duly/runs/{run}/cancel", json={}).json() == {"answer": "cancelled"}
    assert client.post(f"/duly/runs/{run}/cancel", json={}).json() == {"answer": "cancelled"}
    duly.worker().drain(timeout=SOON)
    assert duly.runs.get(run).state == "cancelled"


def test_schedules_are_listed_shown_paused_and_run(duly):
    duly.schedules.sync()
    client = client_of(duly)
    (listed,) = client.get("/duly/schedules").json()
    assert listed["name"] == "nightly"
    shown = client.get("/duly/schedules/nightly").json()
    assert len(shown["next"]) == 5
    paused = client.post("/duly/schedules/nightly/pause", json={"reason": "holidays"}).json()
    assert paused["state"] == "paused"
    assert client.post("/duly/schedules/nightly/resume", json={}).json()["state"] == "active"
    run = client.post("/duly/schedules/nightly/run").json()
    assert duly.runs.get(run["id"]).state == "queued"


@ON_ONE
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/runs/nosuch", None, 404),
        ("GET", "/runs/%00", None, 404),
        ("GET", "/schedules/nosuch", None, 404),
        ("POST", "/schedules/nosuch/pause", {}, 404),
        ("POST", "/runs/nosuch/retry", {}, 404),
        ("POST", "/runs/nosuch/retry", {"arguments": {}}, 404),
        ("POST", "/runs/nosuch/cancel", {"reason": "a" * 10_000}, 422),
        ("POST", "/runs/nosuch/cancel", {"why": "a typo"}, 422),
        ("GET", "/runs?state=nosuch", None, 422),
        ("GET", "/runs?tag=nosuch", None, 422),
        ("GET", "/runs?tag=a%00=b", None, 422),
        ("GET", "/runs?task=%00", None, 422),
        ("GET", "/runs?cursor=nosuch", None, 422),
        ("GET", "/runs?limit=0", None, 422),
        ("GET", "/runs?limit=100000", None, 422),
        ("GET", "/runs?since=2030-01-31T08:00:00", None, 422),
        ("GET", "/runs?since=9999-12-31T23:59:59Z", None, 200),
    ],
)
def test_an_impossible_request_is_refused_with_an_explanation(duly, method, path, body, status):
    answer = client_of(duly).request(method, f"/duly{path}", json=body)
    assert answer.status_code == status, answer.text
    assert status == 200 or answer.json()["detail"]


@ON_ONE
@pytest.mark.parametrize(
    "body",
    [
        r'{"reason": "\ud800"}',
        r'{"\ud800": 1}',
        r'{"reason": NaN}',
        r'{"reason": [1e999]}',
        r'{"reason": {"card": "4111"}}',
    ],
)
def test_the_answer_to_a_refused_request_does_not_contain_its_body(duly, body):
    """The body may be secret, and some values that JSON can parse cannot be written again."""
    answer = client_of(duly).post("/duly/runs/nosuch/cancel", content=body)
    assert answer.status_code == 422
    assert [set(error) for error in answer.json()["detail"]] == [{"type", "loc", "msg"}]
    assert "4111" not in answer.text


@ON_ONE
def test_arguments_that_do_not_fit_are_refused(duly):
    run = enqueued(duly, "divide", 1, by=0)
    duly.worker().drain(timeout=SOON)
    answer = client_of(duly).post(
        f"/duly/runs/{run}/retry", json={"arguments": {"kwargs": {"numbr": 1}}}
    )
    assert answer.status_code == 422
    assert "number" in answer.json()["detail"]
    assert duly.runs.get(run).state == "failed"


@ON_ONE
def test_the_router_is_read_only_by_default(duly):
    run = enqueued(duly, "divide", 1, by=1)
    client = client_of(duly, write=False)
    assert client.post(f"/duly/runs/{run}/cancel", json={}).status_code == 404
    assert duly.runs.get(run).state == "queued"


@ON_ONE
def test_auth_guards_every_route_and_names_the_operator(duly):
    basic = HTTPBasic()

    def admin(given: Annotated[HTTPBasicCredentials, Depends(basic)]) -> str:
        if given.username != "ada":
            raise HTTPException(401)
        return given.username

    run = enqueued(duly, "divide", 1, by=1)
    client = client_of(duly, auth=admin)
    paths = client.app.openapi()["paths"]
    assert len(paths) == 9
    for path, methods in paths.items():
        for method in methods:
            answer = client.request(method, path.format(run_id=run, name="nightly"), json={})
            assert answer.status_code == 401, (method, path)
    client.post(f"/duly/runs/{run}/cancel", json={}, auth=("ada", "")).raise_for_status()
    assert [act.actor for act in duly.store.list_audit_entries(run, 10)] == ["ada"]


@ON_ONE
@pytest.mark.parametrize("answer", [None, "", False])
def test_auth_that_returns_no_name_denies_access(duly, answer):
    async def coroutine():
        return answer

    def plain():
        return coroutine()

    for auth in (lambda: answer, coroutine, plain):
        client = client_of(duly, auth=auth)
        assert client.get("/duly/runs").status_code == 403
        assert client.post("/duly/runs/nosuch/cancel", json={}).status_code == 403


@ON_ONE
def test_auth_may_return_a_coroutine_that_returns_the_operator(duly):
    async def ada():
        return "ada"

    def plain():
        return ada()

    run = enqueued(duly, "divide", 1, by=1)

    client_of(duly, auth=plain).post(f"/duly/runs/{run}/cancel", json={})

    assert [act.actor for act in duly.store.list_audit_entries(run, 10)] == ["ada"]


@ON_ONE
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": "http://testserver"}, 200),
        ({"Origin": "https://front.example"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "null", "Host": ""}, 403),
        ({"Origin": "http://["}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
    ],
)
def test_pages_of_other_origins_cannot_change_anything(duly, headers, status):
    run = enqueued(duly, "divide", 1, by=1)
    client = client_of(duly, allowed_origins=["https://front.example"])
    answer = client.post(f"/duly/runs/{run}/cancel", json={}, headers=headers)
    assert answer.status_code == status
    assert (duly.runs.get(run).state == "cancelled") == (status == 200)


@ON_ONE
def test_the_openapi_schema_describes_the_routes(duly):
    described = client_of(duly).app.openapi()
    shown = described["paths"]["/duly/runs/{run_id}"]["get"]["responses"]["200"]["content"]
    assert shown["application/json"]["schema"]["$ref"].endswith("/RunDetail")
