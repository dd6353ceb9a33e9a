"""`duly.integrations.http_idempotency`: the caller, the mount path, and the kept responses."""

import pytest
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from duly.guard import Guard
from duly.integrations.http_idempotency import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from duly.limits import HTTP_KEPT_UNIT
from tests.integrations.exchanges import Asgi, Wsgi

ON_ONE = pytest.mark.stores("sqlite-wal")
"""These tests are about the request, not about the store."""


def shop(calls, *, status=201, headers=(), body=b"paid"):
    """Return an ASGI application that notes its calls."""

    async def app(_scope, receive, send):
        await receive()
        calls.append(1)
        pairs = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": pairs})
        await send({"type": "http.response.body", "body": body})

    return app


def wsgi_shop(calls, *, headers=(), body=b"paid"):
    """Return a WSGI application that notes its calls."""

    def app(_environ, start_response):
        calls.append(1)
        start_response("201 Created", list(headers))
        return [body]

    return app


def served(kind, guard, calls, *, app=None, **options):
    """Return a client of either kind of middleware."""
    if kind == "asgi":
        return Asgi(IdempotencyMiddleware(shop(calls, **(app or {})), guard, **options))
    return Wsgi(WSGIIdempotencyMiddleware(wsgi_shop(calls, **(app or {})), guard, **options))


KINDS = pytest.mark.parametrize("kind", ["asgi", "wsgi"])


@ON_ONE
@KINDS
@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("cookie", "theme=dark")],
        [("authorization", "")],
        [("authorization", " ")],
        [("authorization", "Bearer")],
        [("authorization", "basic ")],
        [("x-api-key", " ")],
        [("x-client-certificate", "ann")],
    ],
)
def test_a_key_of_an_unauthenticated_caller_is_refused_and_nothing_runs(guard, kind, headers):
    calls = []
    client = served(kind, guard, calls)

    answers = [client.post(headers=headers, caller=None) for _ in range(2)]

    assert [(answer.status, answer.code) for answer in answers] == [(400, "caller-unknown")] * 2
    assert calls == []
    assert client.post(None, headers=headers, caller=None).status == 201


@ON_ONE
@KINDS
@pytest.mark.parametrize("unknown", [None, ""])
def test_a_scope_that_knows_no_caller_refuses_the_key(guard, kind, unknown):
    calls = []

    answer = served(kind, guard, calls, scope=lambda _request: unknown).post()

    assert (answer.status, answer.code) == (400, "caller-unknown")
    assert calls == []


@ON_ONE
def test_a_scope_reads_the_user_that_an_outer_middleware_authenticated(guard):
    calls = []

    class Tokens(AuthenticationBackend):
        async def authenticate(self, conn):
            account = {"old": "ann", "new": "ann", "bob": "bob"}.get(conn.headers["authorization"])
            return account and (AuthCredentials(), SimpleUser(account))

    def account(request):
        user = request.environ["user"]
        return user.username if user.is_authenticated else None

    def post(token):
        headers = {"idempotency-key": "k", "authorization": token}
        return client.post("/pay", headers=headers)

    app = Starlette(
        routes=[Route("/pay", shop_route(calls), methods=["POST"])],
        middleware=[
            Middleware(AuthenticationMiddleware, backend=Tokens()),
            Middleware(IdempotencyMiddleware, guard=guard, scope=account),
        ],
    )
    client = TestClient(app)

    first, again, other, nobody = post("old"), post("new"), post("bob"), post("forged")

    assert (first.status_code, "idempotent-replayed" in first.headers) == (201, False)
    assert again.headers["idempotent-replayed"] == "true"
    assert "idempotent-replayed" not in other.headers
    assert (nobody.status_code, nobody.json()["code"]) == (400, "caller-unknown")
    assert len(calls) == 2


@ON_ONE
def test_a_scope_reads_the_user_that_the_wsgi_server_authenticated(guard):
    calls = []
    client = served("wsgi", guard, calls, scope=lambda request: request.environ.get("REMOTE_USER"))

    answers = [client.post(REMOTE_USER=user) for user in ("ann", "bob", "ann")]

    assert [answer.is_replay for answer in answers] == [False, False, True]
    assert client.post().code == "caller-unknown"


def shop_route(calls):
    async def pay(_request):
        calls.append(1)
        return PlainTextResponse("paid", 201)

    return pay


@ON_ONE
@pytest.mark.parametrize(
    "place",
    [
        {"path": "/api/pay", "root_path": "/api"},
        {"path": "/api/pay", "root_path": "/api/"},
        {"path": "/pay", "root_path": "/api"},  # A proxy has removed the prefix.
        {"path": "/pay/pay", "root_path": "/pay"},
    ],
)
@pytest.mark.parametrize("required", [["/pay"], lambda request: request.path == "/pay"])
def test_a_required_key_is_required_under_a_root_path(guard, place, required):
    calls = []
    client = served("asgi", guard, calls, required=required)

    assert client.post(None, **place).code == "key-missing"
    assert client.post(None, path="/api/other", root_path="/api").status == 201
    assert client.post(None, path="/apipay", root_path="/api").status == 201


@ON_ONE
@pytest.mark.parametrize("required", [["/pay"], lambda request: request.path == "/pay"])
def test_a_required_key_is_required_under_a_script_name(guard, required):
    client = served("wsgi", guard, [], required=required)

    assert client.post(None, SCRIPT_NAME="/api").code == "key-missing"
    assert client.post(None, path="/other", SCRIPT_NAME="/pay").status == 201


@ON_ONE
def test_a_required_key_is_required_in_an_application_that_is_mounted(guard):
    calls = []
    inner = Starlette(
        routes=[Route("/pay", shop_route(calls), methods=["POST"])],
        middleware=[Middleware(IdempotencyMiddleware, guard=guard, required=["/pay"])],
    )
    client = TestClient(Starlette(routes=[Mount("/shop", inner)]), root_path="/api")

    assert client.post("/api/shop/pay").json()["code"] == "key-missing"
    assert calls == []


@ON_ONE
@KINDS
def test_two_applications_at_different_roots_do_not_share_a_key(guard, kind):
    client = served(kind, guard, [])
    name = "root_path" if kind == "asgi" else "SCRIPT_NAME"

    client.post(**{name: "/one"})

    assert client.post(**{name: "/two"}).code == "key-reused"
    assert client.post(**{name: "/one"}).is_replay


@KINDS
@pytest.mark.parametrize("value", ["no-store", "private, No-Store"])
def test_a_no_store_response_is_recorded_as_done_but_not_kept(guard, kind, value):
    calls, keys = [], []
    client = served(kind, guard, calls, app={"headers": [("cache-control", value)]})
    enter = guard.enter
    guard.enter = lambda key, **options: [keys.append(key), enter(key, **options)][1]

    first, again = client.post(), client.post()

    assert (first.status, first.body) == (201, b"paid")
    assert (again.status, again.code) == (409, "response-not-kept")
    assert calls == [1]
    assert guard.look(keys[0]).result is None


@KINDS
def test_a_caller_that_exceeds_its_number_of_kept_responses_gets_429(guard, kind):
    calls = []
    client = served(kind, guard, calls, max_kept=2)

    kept = [client.post(key).status for key in "ab"]
    refused = [client.post(key) for key in "cc"]

    assert kept == [201, 201]
    assert [(answer.status, answer.code) for answer in refused] == [(429, "too-many-keys")] * 2
    assert 0 < int(refused[0].headers["retry-after"]) <= 86_400
    assert client.post("a").is_replay
    assert client.post("a", caller="bob").status == 201
    assert len(calls) == 3


def test_a_large_response_counts_as_several(guard):
    calls = []
    client = served("asgi", guard, calls, app={"body": b"x" * HTTP_KEPT_UNIT * 2}, max_kept=3)

    assert client.post("a").status == 201
    assert client.post("b").code == "too-many-keys"


def test_responses_that_are_not_kept_do_not_count(guard):
    calls = []
    client = served("asgi", guard, calls, app={"status": 404}, max_kept=1)

    assert [client.post(key).status for key in "abc"] == [404] * 3


def test_the_count_of_responses_starts_again_when_they_expire(guard, monkeypatch):
    now = [1_000_000.0]
    monkeypatch.setattr(
        "duly.integrations.http_idempotency.quota.wall_seconds", lambda: now[0], raising=False
    )
    client = served("asgi", guard, [], max_kept=1, ttl=3600)
    client.post("a")
    refused = client.post("b")

    now[0] += int(refused.headers["retry-after"])

    assert client.post("b").status == 201


def test_responses_that_never_expire_are_always_counted(guard):
    client = served("asgi", guard, [], max_kept=1, ttl=None)
    client.post("a")

    refused = client.post("b")

    assert refused.code == "too-many-keys"
    assert "retry-after" not in refused.headers


@pytest.mark.usefixtures("redis_url")
def test_a_guard_on_redis_limits_kept_responses_and_releases_keys(redis_url):
    guard = Guard(redis_url)
    try:
        client = served("asgi", guard, [], max_kept=2)
        gone = served("asgi", guard, [], app={"status": 404})
        statuses = [client.post(key).status for key in "abc"]
        missing = [gone.post("d", body=body).status for body in (b"1", b"2")]
    finally:
        guard.close()

    assert statuses == [201, 201, 429]
    assert missing == [404, 404]
