"""A dashboard without `auth` answers only this machine and requires the token it logs."""

import logging
import re

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.testclient import TestClient

from duly.dashboard import TokenAuth, dashboard
from duly.errors import BadOption
from tests.dashboard.conftest import TOKEN_FIELD

pytestmark = pytest.mark.stores("sqlite")  # Access does not depend on the store.

LINK = re.compile(r"(http://\S+/login)#([0-9a-f]{64})\b")


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Real-IP", "Forwarded"])
@pytest.mark.parametrize("sent", ["testclient", "127.0.0.1", "10.0.0.9"])
def test_a_request_with_a_forwarding_header_is_refused(busy, serve, header, sent):
    address = serve(dashboard(busy.app))

    for path in ("/", "/runs", "/login", "/api/runs"):
        answer = httpx2.get(address + path, headers={header: sent})

        assert answer.status_code == 403, path
        assert "auth=" in answer.text


def test_a_proxy_without_forwarding_headers_needs_the_token(busy, serve):
    address = serve(dashboard(busy.app))

    for path in ("/", "/runs", "/api/runs", "/metrics"):
        assert httpx2.get(address + path).status_code == 401, path


def test_another_machine_gets_no_answer_even_with_the_token(busy):
    other = TestClient(dashboard(busy.app), base_url="http://localhost", client=("10.0.0.9", 4000))

    assert other.get("/login").status_code == 403
    assert other.get("/").status_code == 403


def test_the_logged_link_opens_a_session(busy, serve, caplog):
    address = serve(Starlette(routes=[Mount("/ops", dashboard(busy.app))]))

    with caplog.at_level(logging.WARNING, "duly"), httpx2.Client(follow_redirects=True) as browser:
        page = browser.get(f"{address}/ops/runs", headers={"Accept": "text/html"})
        link, token = LINK.search(caplog.text).groups()
        assert link == f"{address}/ops/login"
        form = {"csrf": TOKEN_FIELD.search(page.text)[1], "token": token}
        inside = browser.post(link, data=form)

        assert inside.status_code == 200
        assert browser.get(f"{address}/ops/runs").status_code == 200
    bearer = {"Authorization": f"Bearer {token}"}
    assert httpx2.get(f"{address}/ops/runs", headers=bearer).status_code == 200
    assert httpx2.get(f"{address}/ops/runs").status_code == 401


def test_a_token_that_was_given_is_not_logged(busy, serve, caplog):
    token = "Vq7-dX2mR9_pLk4TzB8nWc5YhJ3f"  # noqa: S105 - for this test only
    address = serve(dashboard(busy.app, auth=TokenAuth(token)))

    with caplog.at_level(logging.DEBUG, "duly"):
        assert httpx2.get(f"{address}/login").status_code == 200

    assert token not in caplog.text
    assert "/login#" not in caplog.text


def test_actions_without_auth_are_refused_at_startup(shop):
    with pytest.raises(BadOption, match="needs auth="):
        dashboard(shop.app, write=True)


def test_the_starlette_test_client_is_admitted_unless_it_forwards_a_request(shop):
    client = TestClient(dashboard(shop.app), base_url="http://localhost")

    assert client.get("/").status_code == 200
    assert client.get("/", headers={"X-Forwarded-For": "10.0.0.9"}).status_code == 403
