"""The same pages alone, and mounted in FastAPI, Flask and Django applications."""

import asyncio

import pytest
from a2wsgi import ASGIMiddleware
from fastapi import FastAPI
from flask import Flask
from starlette.testclient import TestClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client as WsgiClient

from duly.dashboard import dashboard
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("sqlite")  # The server of the pages does not depend on the store.


def test_pages_are_the_same_in_fastapi_and_under_wsgi(busy):
    pages = dashboard(busy.app, auth=lambda _request: "ann", write=True)
    api = FastAPI()
    api.mount("/duly", pages)
    flask = Flask("shop")
    flask.wsgi_app = DispatcherMiddleware(flask.wsgi_app, {"/duly": ASGIMiddleware(pages)})

    own = TestClient(pages, base_url="http://localhost", root_path="/duly")
    fastapi = TestClient(api, base_url="http://localhost")
    wsgi = WsgiClient(flask)
    for path in ("/runs", "/dead", "/schedules/nightly-report", "/audit"):
        found = {
            _without_times(own.get(f"/duly{path}").text),
            _without_times(fastapi.get(f"/duly{path}").text),
            _without_times(wsgi.get(f"/duly{path}", base_url="http://localhost").text),
        }
        assert len(found) == 1, path
    answer = wsgi.get("/duly/static/dashboard.css", base_url="http://localhost")
    assert answer.status_code == 200


def test_a_page_that_is_closed_under_wsgi_leaves_nothing_running(busy, monkeypatch):
    monkeypatch.setattr("duly.dashboard.live.LIVE_SEND_SECONDS", 3.0)
    carried = ASGIMiddleware(dashboard(busy.app, auth=lambda _request: "ann"))
    browser = WsgiClient(carried)

    # Such a server notices that a page was closed but sends no disconnect event.
    for _ in range(2):
        stream = browser.get(
            "/runs", base_url="http://localhost", headers={"Accept": "text/event-stream"}
        )
        assert b"event: page" in next(iter(stream.iter_encoded()))
        stream.close()

    wait_until(
        lambda: not asyncio.all_tasks(carried.loop), seconds=20, what="both streams have ended"
    )


def _without_times(page):
    """Remove the parts that differ between two requests."""
    import re  # noqa: PLC0415

    page = re.sub(r"<time[^>]*>[^<]*</time>", "<time>", page)
    return re.sub(r'name="csrf" value="[0-9a-f]+"', "csrf", page)
