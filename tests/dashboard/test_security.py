"""Access to pages and actions, and hostile requests (rules S4 to S14, S19, S20, S22)."""

import re
import secrets
from pathlib import Path

import pytest
from starlette.testclient import TestClient

import duly.dashboard
from duly.clock import new_secret
from duly.dashboard import BasicAuth, TokenAuth, Viewer, dashboard
from duly.dashboard.application_view import ApplicationView
from duly.errors import BadOption
from tests.dashboard.conftest import client_of
from tests.dashboard.test_pages import PAGES

HERE = Path(duly.dashboard.__file__).parent
TOKEN = "Vq7-dX2mR9_pLk4TzB8nWc5YhJ3f"  # noqa: S105 - for these tests only
WRITES = (
    "/runs/x/cancel",
    "/runs/x/reschedule",
    "/runs/x/retry",
    "/runs/x/edit",
    "/runs/x/discard",
    "/dead/confirm",
    "/dead/act",
    "/queues/mail/pause",
    "/schedules/x/run",
)

pytestmark = pytest.mark.stores("sqlite")  # None of this depends on the store.


def test_every_response_forbids_frames_foreign_scripts_and_caching(client):
    for path in (*PAGES, "/nowhere", "/login", "/static/dashboard.css"):
        headers = client.get(path, follow_redirects=False).headers

        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';"), path
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        kept = "no-cache" if path.startswith("/static/") else "no-store"
        assert headers["cache-control"] == kept
        assert "access-control-allow-origin" not in headers


def test_a_request_for_another_host_name_is_refused(shop):
    for auth in (None, TokenAuth(TOKEN)):
        pages = dashboard(shop.app, auth=auth, hosts={"localhost"} if auth else None)
        evil = TestClient(pages, base_url="http://evil.test")

        for path in (*PAGES, "/login", "/static/dashboard.js"):
            assert evil.get(path).status_code == 421
        stream = evil.get("/", headers={"Accept": "text/event-stream"})
        assert stream.status_code == 421


def test_a_token_opens_a_session_and_is_in_no_address(shop):
    client = client_of(shop.app, auth=TokenAuth(TOKEN), write=True)
    html = {"Accept": "text/html"}

    assert client.get("/runs", follow_redirects=False).status_code == 401
    assert client.get("/", headers=html, follow_redirects=False).headers["location"] == "/login"
    assert client.submit("/login", token="wrong").status_code == 401  # noqa: S106 - no secret
    assert client.get("/").status_code == 401
    inside = client.submit("/login", token=TOKEN)

    assert inside.status_code == 200
    cookie = inside.history[0].headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert TOKEN not in cookie
    assert client.get("/audit").status_code == 200
    client.submit("/logout")
    assert client.get("/audit").status_code == 401


def test_a_token_is_accepted_as_a_header(shop):
    client = client_of(shop.app, auth=TokenAuth(TOKEN))

    assert client.get("/", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert client.get("/", headers={"Authorization": "Bearer no"}).status_code == 403


def test_a_forged_session_is_refused(shop):
    auth = TokenAuth(TOKEN)
    client = client_of(shop.app, auth=auth)
    session, until, signature = auth.new_session().split(".")
    forged = (
        f"{session}.{until}.{'0' * len(signature)}",
        f"{session}.{int(until) + 1}.{signature}",
        f"other.{until}.{signature}",
        f"{session}.{until}.",
    )

    for made_up in ("", ".", "99999999999.", "99999999999.00ff", "x.y", *forged):
        client.cookies.set("duly_session", made_up)
        assert client.get("/").status_code == 401, made_up
    client.cookies.set("duly_session", f"{session}.{until}.{signature}")
    assert client.get("/").status_code == 200


def test_repeated_wrong_tokens_are_refused(shop):
    client = client_of(shop.app, auth=TokenAuth(TOKEN))

    answers = [client.submit("/login", token=f"wrong {number}") for number in range(12)]

    assert "wait a minute" in answers[-1].text
    assert client.submit("/login", token=TOKEN).status_code == 429


@pytest.mark.parametrize(
    "token",
    [
        *("", "short", "t" * 40, "abcabcabc" * 5, "0123456789" * 3, "k3jq9zx7lw2rt5vb8nm1p"),
        "0f1e2d3c4b5a69788796a5b4c3d2e1f",
    ],
)
def test_tokens_that_can_be_guessed_are_refused(token):
    with pytest.raises(BadOption, match="128 random bits"):
        TokenAuth(token)


def is_refused(token: str) -> bool:
    """Return whether a token is refused because it can be guessed."""
    try:
        TokenAuth(token)
    except BadOption:
        return True
    return False


def test_tokens_from_generators_are_accepted():
    makers = (lambda: secrets.token_urlsafe(16), lambda: secrets.token_hex(16), new_secret)
    tokens = [make() for make in makers for _ in range(50)]

    assert [token for token in tokens if is_refused(token)] == []


def test_names_and_passwords_give_their_roles(shop):
    auth = BasicAuth({"ann": "secret-of-ann"}, viewers={"eve": "secret-of-eve"})
    client = client_of(shop.app, auth=auth, write=True)

    assert client.get("/").headers["www-authenticate"].startswith("Basic")
    client.auth = ("ann", "wrong")
    assert client.get("/").status_code == 401
    client.auth = ("eve", "secret-of-eve")
    assert "read-only" in client.get("/queues").text
    assert client.submit("/queues/mail/pause").status_code == 403
    client.auth = ("ann", "secret-of-ann")
    assert client.submit("/queues/mail/pause", reason="r").status_code == 200
    (act,) = shop.app.store.list_audit_entries(None, 5)
    assert (act.actor, act.act, act.reason) == ("ann", "pause", "r")


@pytest.mark.parametrize("answer", [None, False, "", 1, Viewer(""), {"name": "ann"}])
def test_a_hook_that_identifies_no_user_admits_no_user(shop, answer):
    async def coroutine(_request):
        return answer

    def plain(request):
        return coroutine(request)

    for auth in (lambda _request: answer, coroutine, plain):
        assert client_of(shop.app, auth=auth).get("/").status_code == 403


def test_a_hook_may_be_a_coroutine(shop):
    async def who(_request):
        return Viewer("ann", "viewer")

    page = client_of(shop.app, auth=who, write=True).get("/")

    assert "ann" in page.text
    assert "read-only" in page.text


def test_a_read_only_view_offers_no_operator_actions(shop):
    view = ApplicationView(shop.app, shows_arguments=True, writes=False)

    with pytest.raises(BadOption, match="read-only"):
        view.operator  # noqa: B018 - it raises


def test_a_dashboard_is_read_only_by_default(busy):
    client = client_of(busy.app)

    for path in WRITES:
        assert client.submit(path, verb="retry").status_code == 403, path
    assert ">Pause<" not in client.get("/queues").text
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    assert "Retry" not in client.get(f"/runs/{run.id}").text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.test"},
        {"Origin": "null", "Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_write_from_another_site_is_refused(client, shop, headers):
    client.get("/")
    csrf = client.cookies["duly_csrf"]

    answer = client.post("/queues/mail/pause", data={"csrf": csrf}, headers=headers)

    assert answer.status_code == 403
    assert shop.app.store.list_audit_entries(None, 5) == []


def test_a_write_without_the_token_of_our_pages_is_refused(client, shop):
    client.get("/")

    assert client.post("/queues/mail/pause").status_code == 403
    assert client.post("/queues/mail/pause", data={"csrf": "0" * 64}).status_code == 403
    text = {"Content-Type": "text/plain"}
    assert client.post("/queues/mail/pause", content='{"a":1}', headers=text).status_code == 403
    assert shop.app.store.list_audit_entries(None, 5) == []


def test_a_get_request_changes_nothing(busy, client):
    before = busy.app.store.list_audit_entries(None, 100)

    for path in WRITES:
        assert client.get(path, follow_redirects=False).status_code in {404, 405, 200}, path

    assert busy.app.store.list_audit_entries(None, 100) == before


def test_hostile_text_is_shown_as_text(shop, client):
    payload = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    run = shop.send_receipt.using(tags={"t": payload}, key=payload[:40]).enqueue(1, payload)
    shop.app.queues.pause("mail", actor=payload[:60], reason=payload)

    for path in ("/runs", f"/runs/{run.id}", "/audit", "/queues", "/dead"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "<img src=x" not in page
    for parameter in ("q", "before", "window", "subject", "task", "fingerprint"):
        for path in (*PAGES, "/dead/group"):
            page = client.get(path, params={parameter: payload})
            assert page.status_code in {200, 404, 422}
            assert "<script>alert" not in page.text
            assert "<img src=x" not in page.text


def test_odd_parameters_cause_no_server_errors(client):
    for value in ("\0", "%", "'; DROP TABLE duly_runs; --", "9" * 400, "\u202e", "-1", "1e9"):
        for name in ("q", "before", "window", "subject", "task", "fingerprint"):
            for path in (*PAGES, "/dead/group"):
                assert client.get(path, params={name: value}).status_code < 500, (path, name, value)
        for qualifier in ("task", "queue", "tag", "key", "error", "args.a", "since", "id"):
            answer = client.get("/runs", params={"q": f"{qualifier}:{value}"})
            assert answer.status_code < 500, (qualifier, value)


def test_templates_never_disable_escaping_and_contain_no_scripts_or_styles():
    for template in (HERE / "templates").glob("*.html"):
        text = template.read_text()
        assert not re.search(r"\|\s*safe\b|autoescape false|\bstyle=|\son\w+=", text), template.name
        assert not re.search(r"<script(?![^>]*\bsrc=)", text), template.name


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1@evil.test", "127.0.0.1:80@evil.test", "localhost:x", "[::1]evil", "[::1"),
        *("localhost/evil.test", "localhost evil.test", "localhost.", "localhost:123456", ""),
    ],
)
def test_a_host_that_only_resembles_an_allowed_host_is_refused(shop, host):
    assert client_of(shop.app).get("/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("hosts", ["localhost", "", [], [None]])
def test_a_hosts_option_that_is_no_collection_of_names_is_refused(shop, hosts):
    """A string would match each of its substrings, including the empty host of a bad header."""
    with pytest.raises(BadOption, match="hosts must be host names"):
        dashboard(shop.app, auth=TokenAuth(TOKEN), hosts=hosts)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8008", "127.0.0.1:1", "[::1]", "[::1]:80"]
)
def test_an_allowed_host_may_have_a_port(shop, host):
    assert client_of(shop.app).get("/", headers={"Host": host}).status_code == 200


FORMS = {
    "no boundary": ("multipart/form-data", b"zzz"),
    "no part": ("multipart/form-data; boundary=x", b"--x\nzzz"),
    "a file": (
        "multipart/form-data; boundary=x",
        b'--x\r\nContent-Disposition: form-data; name="f"; filename="f"\r\n\r\na\r\n--x--\r\n',
    ),
}


@pytest.mark.parametrize("kind", FORMS)
def test_an_invalid_form_is_refused_with_a_message(shop, kind):
    client = client_of(shop.app, write=True)
    client.get("/queues")
    given, body = FORMS[kind]

    answer = client.post("/queues/mail/pause", content=body, headers={"Content-Type": given})

    assert answer.status_code == 403
    assert "does not belong to this dashboard" in answer.text
    assert answer.headers["x-frame-options"] == "DENY"


def test_a_form_that_is_too_long_is_not_read(shop):
    client = client_of(shop.app, write=True)

    answer = client.submit("/queues/mail/pause", reason="x" * 2_000_000)

    assert answer.status_code == 413
    assert "larger than" in answer.text
    assert shop.app.queues.list() == []


def test_an_unknown_csrf_token_is_replaced(shop):
    client = client_of(shop.app, write=True)
    for made_up in ("x", "y" * 5_000, "0123456789abcdef"):
        client.cookies.clear()
        client.cookies.set("duly_csrf", made_up)

        page = client.get("/queues")
        answer = client.post("/queues/mail/pause", data={"csrf": made_up})

        assert f'value="{made_up}"' not in page.text
        assert answer.status_code == 403


def test_an_auth_hook_that_raises_admits_no_user_and_reports_an_error(shop):
    def broken(_request):
        raise RuntimeError("the directory of users is away")

    client = TestClient(
        dashboard(shop.app, auth=broken),
        base_url="http://localhost",
        raise_server_exceptions=False,
    )

    answer = client.get("/")

    assert answer.status_code == 500
    assert "directory" not in answer.text
    assert "log of its process" in answer.text
    assert "default-src 'none'" in answer.headers["content-security-policy"]
