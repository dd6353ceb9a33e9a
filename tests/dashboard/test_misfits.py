"""Runs whose stored data is damaged or does not fit the current code break no page or JSON."""

import sqlite3
from contextlib import closing

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from duly import Duly
from duly.integrations.fastapi import duly_router
from tests.dashboard.conftest import client_of


def answers(app, run_id):
    """Return the responses of all pages, JSON and FastAPI routes that show a run."""
    client = client_of(app, write=True)
    api = FastAPI()
    api.include_router(duly_router(app, auth=None, write=True, show_arguments=True))
    router = TestClient(api)
    return {
        "page": client.get(f"/runs/{run_id}"),
        "edit": client.get(f"/runs/{run_id}/edit"),
        "json": client.get(f"/api/runs/{run_id}"),
        "list": client.get("/runs"),
        "found": client.get("/api/runs", params={"q": "args.order_id:7"}),
        "router": router.get(f"/runs/{run_id}"),
        "router list": router.get("/runs"),
    }


def statuses(found):
    return {name: answer.status_code for name, answer in found.items()}


ALL_SHOWN = dict.fromkeys(("page", "edit", "json", "list", "found", "router", "router list"), 200)


def new_signatures():
    """Return functions that the arguments of `def charge(order_id, card)` do not fit."""

    def takes_nothing() -> None: ...

    def takes_others(account: str, /, *, token: str) -> None: ...

    def takes_one(order_id: int) -> None: ...

    return takes_nothing, takes_others, takes_one


@pytest.mark.parametrize("changed", new_signatures(), ids=lambda function: function.__name__)
def test_a_run_whose_arguments_no_longer_fit_the_task_is_shown_without_them(store_url, changed):
    with closing(Duly(store_url)) as before:

        @before.task(name="charge")
        def charge(order_id: int, card: str) -> None: ...

        run = charge.enqueue(7, "4111-2222")
        before.runs.cancel(run.id)

    with closing(Duly(store_url)) as app:
        app.task(name="charge")(changed)
        found = answers(app, run.id)

    assert statuses(found) == ALL_SHOWN
    assert "do not fit the current task" in found["page"].text
    assert "cannot be edited here" in found["edit"].text
    assert found["json"].json()["arguments"] is None
    assert found["router"].json()["arguments"] is None
    assert not any("4111-2222" in answer.text for answer in found.values())


DAMAGED = [
    "",
    "x",
    '"***"',
    "null",
    "[]",
    '{"order_id":1}',
    '["a",{}]',
    "[[NaN],{}]",
    '[[],{"order_id":1e999}]',
    '[[],{"order_id":"\\ud800"}]',
    f'[[],{{"order_id":{"9" * 5_000}}}]',
    f'[[],{{"order_id":{"[" * 5_000}{"]" * 5_000}}}]',
    '{"a":"\\ud800"}',
    '{"a":NaN}',
]


@pytest.mark.stores("sqlite")  # Both stores decode the data with the same code.
@pytest.mark.parametrize("column", ["arguments", "result", "tags"])
@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_run_whose_stored_text_is_damaged_is_shown(shop, store_url, column, text):
    run = shop.nothing.enqueue()
    shop.app.worker().drain()
    with closing(sqlite3.connect(store_url.removeprefix("sqlite:///"))) as connection, connection:
        place = (text, run.id)
        statement = f"UPDATE duly_history SET {column} = ? WHERE id = ?"  # noqa: S608 - constants of this test
        assert connection.execute(statement, place).rowcount == 1

    assert statuses(answers(shop.app, run.id)) == ALL_SHOWN
