"""The time and memory of `GET /tasks` do not depend on the size of the history."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly.clock import monotonic
from duly.compat.fastapi_taskflow import TaskAdmin, operations
from tests.compat.fastapi_taskflow.conftest import adding, serving
from tests.dashboard.test_million import RUNS
from tests.dashboard.test_million import fill as fill_a_million
from tests.integrations.evidence import keep
from tests.servers.processes import wait_until
from tests.store.sqlite.test_read_cost import cost, fill

SOON = 20.0
SECONDS = 0.2
MEGABYTES = 32
PAGES = 100
FEW, MANY = 300, 5_000
QUERIES = (
    "",
    "status=success",
    "status=pending",
    "status=failed",
    "status=cancelled",
    "func_name=task_10",
    "func_name=rare&status=success",
    "queue=nobody",
    "tag=a%3Db",
    "since=1h",
    "since=1h&func_name=rare&status=failed",
    "since=1h&queue=nobody&status=failed",
)


def define(manager) -> None:
    """Register the tasks that are in the history."""
    for name in ("rare", "task_10"):
        manager.task(name=f"shop:{name}")(lambda **_arguments: None)


def client_of(manager) -> TestClient:
    """Return a client of an application that is not started, so nothing else runs."""
    app = FastAPI()
    TaskAdmin(app, manager)
    return TestClient(app, base_url="http://localhost")


def follow(client: TestClient, **query) -> list[str]:
    """Return the ids on all pages."""
    found = []
    while True:
        answer = client.get("/tasks", params=query)
        assert answer.status_code == 200
        found += [task["task_id"] for task in answer.json()]
        if "X-Next-Cursor" not in answer.headers:
            return found
        query["cursor"] = answer.headers["X-Next-Cursor"]


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("query", QUERIES)
def test_the_cost_of_a_page_does_not_depend_on_the_history(manager, monkeypatch, query):
    @manager.task(name="shop:other")
    def other() -> None: ...

    define(manager)
    with serving(manager):
        run = manager.duly.runs.get(adding(manager).add_task(other))
        run.result(timeout=SOON)
    monkeypatch.setattr(operations, "SCAN_RUNS", 50)
    store, client = manager.duly.store, client_of(manager)
    with closing(sqlite3.connect(store.path, check_same_thread=False)) as connection:

        def counted(sql, parameters):
            costs[-1] += cost(connection, sql, parameters)
            return connection.execute(sql, parameters).fetchall()

        monkeypatch.setattr(store, "_read", counted)
        costs = []
        for rows in (FEW, MANY):
            fill(connection, rows)
            costs.append(0)
            assert client.get(f"/tasks?{query}").status_code == 200

    assert costs[1] <= 1.5 * costs[0]


def test_rare_tasks_are_found_page_by_page_without_duplicates(manager, monkeypatch):
    first = manager.task(name="shop.first:send")(lambda: None)
    second = manager.task(name="shop.second:send")(lambda: None)
    other = manager.task(name="shop:other")(lambda: None)
    wanted = []
    with serving(manager):
        for number in range(30):
            function = {0: first, 13: second, 14: first}.get(number, other)
            task_id = adding(manager).add_task(function)
            if function is not other:
                wanted.insert(0, task_id)
        wait_until(
            lambda: not manager.duly.runs.list(state=("queued", "running"), limit=1),
            seconds=SOON,
            what="all have run",
        )
    monkeypatch.setattr(operations, "SCAN_RUNS", 4)
    client = client_of(manager)

    page = client.get("/tasks", params={"func_name": "send"})

    assert page.json() == []
    assert page.headers["X-Next-Cursor"]
    assert follow(client, func_name="send") == wanted
    assert follow(client, func_name="send", limit=1) == wanted
    assert len(follow(client, limit=7)) == 30


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_page_of_a_million_tasks_is_served_within_200_ms(manager, store_url, store_kind):
    define(manager)
    fill_a_million(store_url, manager.duly.store.now())
    client = client_of(manager)
    newest = manager.duly.runs.list(limit=1)[0].id
    addresses = [f"/tasks?{query}" for query in QUERIES]
    addresses += ["/tasks?limit=200", "/tasks/metrics", "/tasks/queues", f"/tasks/{newest}"]

    times = {each: min(seconds(client, each) for _ in range(3)) for each in addresses}
    before = resident()
    for _ in range(PAGES):
        client.get("/tasks?limit=200")
    grown = resident() - before

    late = {each: took for each, took in times.items() if took > SECONDS}
    document = {
        "tasks": RUNS,
        "milliseconds": {each: round(took * 1000, 1) for each, took in times.items()},
        "pages": PAGES,
        "megabytes_grown": round(grown, 1),
        "broken": [f"{each} took {took:.3f} s" for each, took in late.items()],
    }
    if grown > MEGABYTES:
        document["broken"].append(f"the process grew by {grown:.0f} MB")
    keep("taskflow-million", store_kind, document, "fastapi")
    assert document["broken"] == []


def seconds(client: TestClient, address: str) -> float:
    began = monotonic()
    assert client.get(address).status_code == 200
    return monotonic() - began


def resident() -> float:
    """Return the memory of this process, in megabytes."""
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmRSS" in line
    ]
    return int(line.split()[1]) / 1024
