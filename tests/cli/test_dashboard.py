"""`duly dashboard` and `duly deploy-mark`: credentials, addresses and deployment marks."""

import itertools
import json
import re

import pytest
from starlette.testclient import TestClient

import duly.dashboard.server
from duly.cli.dashboard import TOKEN, USERS

LOCAL, OPEN = "127.0.0.1", "0.0.0.0"  # noqa: S104 - the test expects a refusal
LONG = "a-token-of-more-than-22-characters"


@pytest.fixture
def served(monkeypatch):
    """The applications that the command would have served."""
    pages = []
    monkeypatch.setattr(duly.dashboard.server, "serve", lambda app, _, **__: pages.append(app))
    for name in (TOKEN, USERS):
        monkeypatch.delenv(name, raising=False)
    return pages


@pytest.mark.stores("sqlite")
def test_a_public_dashboard_needs_credentials(cli, app, served, monkeypatch):
    for host, token, write in itertools.product((LOCAL, OPEN), (None, LONG), (False, True)):
        if token:
            monkeypatch.setenv(TOKEN, token)
        else:
            monkeypatch.delenv(TOKEN, raising=False)
        served.clear()

        result = cli(
            *("dashboard", "--port", "0", "--json"),
            *("--host", host),
            *(["--write"] if write else []),
        )

        if host == OPEN and token is None:
            assert (result.exit_code, served) == (2, [])
            assert TOKEN in result.stderr
            continue
        assert result.exit_code == 0
        told = json.loads(result.stdout)
        secret = token or told["token"]
        assert told["token"] is None if token else len(secret) == 64
        assert told["link"] == (None if token else f"{told['address']}login#{secret}")
        client = TestClient(served[0], base_url="http://localhost")
        assert client.get("/queues").status_code == 401
        page = client.get("/queues", headers={"Authorization": f"Bearer {secret}"})
        assert ("can act" if write else "read-only") in page.text


@pytest.mark.stores("sqlite")
def test_one_link_to_sign_in_is_printed(cli, app, served):
    result = cli("dashboard", "--host", "::1", "--port", "0")

    (link,) = re.findall(r"http://\[::1\]:\d+/login#([0-9a-f]{64})$", result.stdout, re.MULTILINE)
    client = TestClient(served[0], base_url="http://[::1]")
    assert client.get("/", headers={"Authorization": f"Bearer {link}"}).status_code == 200


@pytest.mark.stores("sqlite")
def test_names_passwords_and_further_host_names_are_accepted(cli, app, served, monkeypatch):
    monkeypatch.setenv(USERS, "ann:secret-of-one,bob:secret-of-two")

    result = cli("dashboard", "--port", "0", "--allow-host", "ops.example.com")

    assert result.exit_code == 0
    for host, status in (("ops.example.com", 200), ("other.example.com", 421)):
        client = TestClient(served[0], base_url=f"http://{host}")
        client.auth = ("bob", "secret-of-two")
        assert client.get("/").status_code == status
    monkeypatch.setenv(USERS, "ann")
    assert cli("dashboard", "--port", "0").exit_code == 2


@pytest.mark.stores("sqlite")
def test_a_proxy_serves_it_below_a_path(cli, app, served, monkeypatch):
    monkeypatch.setenv(USERS, "ann:secret-of-one")

    result = cli("dashboard", "--port", "0", "--root-path", "/ops/duly/")

    assert "/ops/duly/" in result.stdout
    client = TestClient(served[0], base_url="http://localhost")
    client.auth = ("ann", "secret-of-one")
    assert 'href="/ops/duly/runs"' in client.get("/").text
    assert cli("dashboard", "--port", "0", "--root-path", "duly").exit_code == 2


@pytest.mark.stores("sqlite")
@pytest.mark.parametrize("proxies", ["proxy", "*", "127.0.0.1;10.0.0.1", "10.0.0.1/8"])
def test_a_proxy_is_named_by_its_address(cli, app, served, proxies):
    result = cli("dashboard", "--port", "0", "--forwarded-allow-ips", proxies)

    assert (result.exit_code, served) == (2, [])
    assert "127.0.0.1,10.0.0.0/8" in result.stderr.replace("\n", "")


def test_a_deployment_is_marked(cli, app):
    result = cli("deploy-mark", "v1.4")

    assert result.exit_code == 0
    (act,) = app.store.list_audit_entries("deployment", 5)
    assert (act.actor, act.act, act.reason) == ("tester", "deploy", "v1.4")
