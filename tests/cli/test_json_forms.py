"""The command line, the dashboard and the FastAPI routes return the same JSON of a record."""

import re
import sys

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly.integrations.fastapi import duly_router
from tests.cli.conftest import answer
from tests.dashboard.conftest import client_of

WORKFLOW = """
import duly
from orders import app


@app.task(redact=("card",))
def charge(order: int, card: str) -> str:
    duly.current().log.info("charging")
    return duly.step("pay", str, card) + " paid"


@app.task(redact=("card",))
def charge_all(card: str) -> list[str]:
    return duly.gather(charge.using(tags={"shop": "7"}).call(order, card) for order in range(2))
"""
CARD = "4111-2222"
INSTANT = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{6}Z")


@pytest.fixture
def dashboard(app):
    return client_of(app)


@pytest.fixture
def router(app):
    api = FastAPI()
    api.include_router(duly_router(app, auth=None, show_arguments=True))
    return TestClient(api)


@pytest.fixture
def billing(app, folder, monkeypatch):
    """Tasks whose arguments have a secret."""
    (folder / "billing.py").write_text(WORKFLOW)
    __import__("billing")
    monkeypatch.setenv("DULY_APP", "billing:app")
    return sys.modules["billing"]


def differences(one, other):
    """Return the fields of both documents that differ."""
    names = one.keys() & other
    assert names
    return {name: (one[name], other[name]) for name in names if one[name] != other[name]}


def test_a_run_has_one_json_form(billing, app, drain, cli, dashboard, router):
    parent = billing.charge_all.enqueue(CARD)
    drain()
    run = next(iter(app.runs.list(task="billing:charge")))

    printed = answer(cli("runs", "show", run.id, "--json"))
    shown = dashboard.get(f"/api/runs/{run.id}").json()
    routed = router.get(f"/runs/{run.id}").json()

    assert printed["run"] == {name: shown[name] for name in printed["run"]}
    assert differences(routed, printed["run"]) == {}
    for name in ("attempts", "steps", "logs"):
        assert printed[name] == shown[name]
        pairs = zip(routed[name], printed[name], strict=True)
        assert [differences(*pair) for pair in pairs] == [{}]
    assert shown["arguments"] == {"args": [], "kwargs": {"order": 1, "card": "***"}}
    assert (shown["result"], shown["steps"][0]["result"]) == ("*** paid", "***")
    assert (shown["tags"], shown["parent"]) == ({"shop": "7"}, parent.id)
    assert all(INSTANT.fullmatch(routed[name]) for name in ("created_at", "finished_at"))


def test_a_run_has_one_json_form_in_lists(billing, app, drain, cli, dashboard, router):
    billing.charge_all.enqueue(CARD)
    drain()

    printed = answer(cli("runs", "list", "--json"))["runs"]
    shown = dashboard.get("/api/runs").json()["runs"]
    routed = router.get("/runs").json()["runs"]

    assert len(printed) == 3
    for one, two, three in zip(printed, shown, routed, strict=True):
        assert differences(one, two) == differences(one, three) == {}


def test_a_dead_letter_has_the_json_form_of_a_run(run_of, drain, cli, dashboard):
    run = run_of("send", "a letter")
    drain()

    printed = answer(cli("dead", "list", "--json"))["runs"]
    exported = dashboard.get("/dead/export").json()

    assert printed == [exported]
    assert exported == answer(cli("runs", "show", run.id, "--json"))["run"]
    groups = dashboard.get("/api/dead").json()["groups"]
    assert answer(cli("dead", "groups", "--json"))["groups"] == groups


def test_a_schedule_has_one_json_form(billing, app, drain, cli, dashboard, router):
    app.schedules.add("nightly", billing.charge, cron="0 2 * * *", tz="UTC", args=(7, CARD))
    app.schedules.run_now("nightly")

    printed = answer(cli("schedules", "show", "nightly", "--json"))
    (shown,) = dashboard.get("/api/schedules").json()["schedules"]
    routed = router.get("/schedules/nightly").json()

    assert printed["schedule"] == shown
    assert shown["arguments"] == {"args": [], "kwargs": {"order": 7, "card": "***"}}
    assert differences(routed, shown) == {}
    assert routed["next"] == printed["next"]
    assert INSTANT.fullmatch(shown["next_at"])
    assert len(routed["firings"]) == len(printed["firings"])


def test_queues_and_workers_have_one_json_form(run_of, drain, cli, dashboard):
    run_of("send", "a letter")
    drain()
    run_of("send", "another letter")

    for name in ("queues", "workers"):
        printed = answer(cli(name, "list", "--json"))[name]
        assert printed
        assert printed == dashboard.get(f"/api/{name}").json()[name]
