"""`duly.integrations.http_idempotency` before plain ASGI callables: every status, and streams."""

import asyncio
import json

import pytest

from duly.errors import BadOption, StoreUnavailable
from duly.guard import Guard
from duly.integrations.http_idempotency import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from duly.limits import RESULT_BYTES
from tests.integrations.exchanges import Asgi, Wsgi


class Shop:
    """An application that counts its calls and answers as configured."""

    def __init__(self, status=201, headers=(), chunks=(b"paid",)) -> None:
        self.status = status
        self.headers = list(headers)
        self.chunks = list(chunks)
        self.calls: list[bytes] = []
        self.breaks_after: int | None = None

    async def __call__(self, _scope, receive, send):
        body, message = b"", {"more_body": True}
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        self.calls.append(body)
        number = str(len(self.calls)).encode()
        headers = [*self.headers, (b"x-call", number)]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        for index, chunk in enumerate(self.chunks):
            if index == self.breaks_after:
                raise ConnectionError("the bank hung up")
            more = index < len(self.chunks) - 1
            await send({"type": "http.response.body", "body": chunk, "more_body": more})


def serve(guard, shop, **options):
    return Asgi(IdempotencyMiddleware(shop, guard, **options))


def test_a_repeat_gets_the_first_response_and_runs_nothing(guard):
    shop = Shop(headers=[(b"location", b"/pay/1")])
    client = serve(guard, shop)

    first, again = client.post(), client.post()

    assert (first.status, first.body, first.is_replay) == (201, b"paid", False)
    assert (again.status, again.body, again.is_replay) == (201, b"paid", True)
    assert again.headers["location"] == "/pay/1"
    assert again.headers["x-call"] == "1"
    assert again.headers["content-length"] == "4"
    assert shop.calls == [b"{}"]


def test_requests_without_a_key_or_of_other_methods_pass(guard):
    shop = Shop()
    client = serve(guard, shop)

    for _ in range(2):
        assert client.post(None).status == 201
        assert client.post(method="PUT").status == 201

    assert len(shop.calls) == 4


@pytest.mark.parametrize("required", [["/pay"], "/pay/", lambda request: request.path == "/pay"])
def test_a_key_that_is_required_and_missing_is_400(guard, required):
    shop = Shop()
    client = serve(guard, shop, required=required)

    assert client.post(None).code == "key-missing"
    assert client.post(None).status == 400
    assert client.post(None, path="/payments").status == 201
    assert client.post(None, method="GET").status == 201


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b'""',
        b"a\x00b",
        b"a\nb",
        b"two words",
        b'"one", "two"',
        b"one,two",
        b'"one";q=1',
        b'"open',
        b'"a\\b"',
        "ключ".encode(),
        b'"\xe9"',
        b"k" * 10_000,
        b'"' + b"k" * 256 + b'"',
    ],
)
@pytest.mark.stores("sqlite-wal")  # A refused key never reaches the store.
def test_a_malformed_key_is_400(guard, key):
    shop = Shop()

    answer = serve(guard, shop).post(key)

    assert (answer.status, answer.code) == (400, "key-malformed")
    assert shop.calls == []


def test_a_quoted_key_is_the_same_as_the_bare_one(guard):
    shop = Shop()
    client = serve(guard, shop)

    assert not client.post("order:7").is_replay
    assert client.post('"order:7"').is_replay
    assert not client.post(r'"a \"b\" c"').is_replay
    assert not client.post('"' + "k" * 255 + '"').is_replay


def test_the_same_key_for_another_request_is_422(guard):
    shop = Shop()
    client = serve(guard, shop)
    client.post()
    kinds = [("content-type", "text/plain")]

    others = [
        client.post(body=b"[]"),
        client.post(path="/refund"),
        client.post(query=b"a=1"),
        client.post(method="PATCH"),
        client.post(headers=kinds),
    ]

    assert [(other.status, other.code) for other in others] == [(422, "key-reused")] * 5
    assert len(shop.calls) == 1


def test_two_virtual_hosts_do_not_get_each_others_responses(guard):
    shop = Shop()
    client = serve(guard, shop)
    client.post(headers=[("host", "a.example")])

    same = [client.post(headers=[("host", host)]) for host in ("A.example", "a.example:443")]
    other = client.post(headers=[("host", "b.example")])

    assert [answer.is_replay for answer in same] == [True, True]
    assert (other.status, other.code) == (422, "key-reused")
    assert len(shop.calls) == 1


def test_virtual_hosts_can_have_separate_keys(guard):
    shop = Shop()
    client = serve(guard, shop, scope=lambda request: request.headers["host"])

    answers = [client.post(headers=[("host", host)]) for host in ("a.example", "b.example")]

    assert [answer.is_replay for answer in answers] == [False, False]
    assert len(shop.calls) == 2


def test_a_repeat_while_the_first_runs_is_409(guard):
    shop = Shop()

    async def main():
        client = serve(guard, app)
        first = asyncio.create_task(client.apost())
        await started.wait()
        busy = await client.apost()
        conflict = await client.apost(body=b"[]")
        may_continue.set()
        return await first, busy, conflict

    async def app(scope, receive, send):
        started.set()
        await may_continue.wait()
        await shop(scope, receive, send)

    started, may_continue = asyncio.Event(), asyncio.Event()
    first, busy, conflict = asyncio.run(main())

    assert first.status == 201
    assert (busy.status, busy.code) == (409, "in-progress")
    assert int(busy.headers["retry-after"]) > 0
    assert (conflict.status, conflict.code) == (422, "key-reused")


@pytest.mark.parametrize("name", ["authorization", "cookie", "x-api-key"])
def test_callers_with_the_same_key_do_not_see_each_other(guard, name):
    shop = Shop()
    client = serve(guard, shop)
    # A cookie alone names no caller, but it distinguishes callers that share a token.
    shared = "Bearer shared" if name == "cookie" else None

    def post(who):
        return client.post(headers=[(name, who)], caller=shared)

    answers = [post("ann-secret"), post("bob-secret")]
    again = post("ann-secret")

    assert [answer.headers["x-call"] for answer in answers] == ["1", "2"]
    assert again.headers["x-call"] == "1"


def test_nothing_of_a_caller_is_stored_in_clear(guard, monkeypatch):
    kept = []
    apply = guard.ledger.apply
    monkeypatch.setattr(guard.ledger, "apply", lambda ops: [kept.append(repr(ops)), apply(ops)][1])

    serve(guard, Shop()).post(headers=[("Authorization", "Bearer secret"), ("Cookie", "s=secret")])

    assert kept
    assert "secret" not in "".join(kept)


def test_a_custom_scope_identifies_the_caller(guard):
    shop = Shop()
    client = serve(guard, shop, scope=lambda request: request.headers["x-account"])

    client.post(headers=[("x-account", "7"), ("authorization", "old")])
    again = client.post(headers=[("x-account", "7"), ("authorization", "new")])
    other = client.post(headers=[("x-account", "8"), ("authorization", "new")])

    assert again.is_replay
    assert not other.is_replay


@pytest.mark.parametrize("scope", [7, b"ann", True])
@pytest.mark.parametrize("client", [Asgi, Wsgi])
@pytest.mark.stores("sqlite-wal")  # The store is not used.
def test_a_scope_that_returns_no_text_is_an_error_and_nothing_runs(guard, client, scope):
    shop = Shop()
    kind = IdempotencyMiddleware if client is Asgi else WSGIIdempotencyMiddleware
    served = client(kind(shop, guard, scope=lambda _request: scope))

    with pytest.raises(BadOption, match="scope must return a string or None"):
        served.post()

    assert shop.calls == []


@pytest.mark.parametrize("status", [200, 204, 303, 400, 402, 410])
def test_a_final_response_is_replayed(guard, status):
    shop = Shop(status, chunks=[b""])
    client = serve(guard, shop)

    client.post()
    again = client.post()

    assert (again.status, again.is_replay) == (status, True)
    assert ("content-length" in again.headers) == (status != 204)
    assert len(shop.calls) == 1


@pytest.mark.parametrize(
    "status", [401, 403, 404, 405, 413, 415, 422, 408, 409, 425, 429, 500, 503]
)
def test_a_response_with_a_transient_status_leaves_no_key(guard, status):
    shop = Shop(status)
    keys = []

    async def app(scope, receive, send):
        keys.append(scope["duly.claim"].key)
        await shop(scope, receive, send)

    client = serve(guard, app)

    assert client.post().status == status
    assert guard.look(keys[0]) is None
    shop.status = 201
    assert client.post(body=b"corrected").headers["x-call"] == "2"
    assert client.post(body=b"corrected").is_replay


def test_the_kept_statuses_can_be_configured(guard):
    shop = Shop(400)
    client = serve(guard, shop, keeps=lambda status: status < 300)

    client.post()
    client.post()

    assert len(shop.calls) == 2


def test_an_exception_releases_the_key(guard):
    shop = Shop(chunks=[b"pa", b"id"])
    client = serve(guard, shop)
    for breaks_after in (0, 1):
        shop.breaks_after = breaks_after
        with pytest.raises(ConnectionError):
            client.post()
    shop.breaks_after = None

    assert client.post().headers["x-call"] == "3"


def test_headers_of_one_connection_and_cookies_are_not_replayed(guard):
    headers = [
        (b"set-cookie", b"session=1"),
        (b"connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"transfer-encoding", b"chunked"),
        (b"date", b"Thu, 01 Jan 1970 00:00:00 GMT"),
        (b"idempotent-replayed", b"maybe"),
        (b"etag", b'"1"'),
    ]
    client = serve(guard, Shop(headers=headers))

    first, again = client.post(), client.post()

    assert first.headers["set-cookie"] == "session=1"
    assert set(again.headers) == {"etag", "x-call", "content-length", "idempotent-replayed"}


def test_a_body_that_is_too_large_is_413(guard):
    shop = Shop()
    client = serve(guard, shop, max_body=10)

    announced = client.post(body=b"x" * 11, headers=[("content-length", "1" * 5000)])
    streamed = client.post(body=b"x" * 11)

    assert client.post(body=b"x" * 10).status == 201
    assert (streamed.status, streamed.code) == (413, "body-too-large")
    assert announced.status == 413
    assert client.post(None, body=b"x" * 11).status == 201
    assert len(shop.calls) == 2


@pytest.mark.parametrize("chunks", [[b"x" * RESULT_BYTES], [b"x" * 100_000] * 8])
def test_a_response_that_is_too_large_is_recorded_as_done_but_not_kept(guard, chunks):
    shop = Shop(chunks=chunks)
    client = serve(guard, shop)

    first, again = client.post(), client.post()

    assert (first.status, len(first.body)) == (201, sum(map(len, chunks)))
    assert (again.status, again.code) == (409, "response-not-kept")
    assert "retry-after" not in again.headers
    assert len(shop.calls) == 1


def test_a_stream_is_forwarded_chunk_by_chunk_and_recorded_before_its_last_byte(guard):
    states = []
    shop = Shop(chunks=[b"a", b"b", b"c"])
    client = serve(guard, shop)
    key = "done?"

    async def look_at(scope, receive, send):
        async def noting(message):
            found = await asyncio.to_thread(guard.look, scope["duly.claim"].key)
            states.append((message.get("body"), found.state))
            await send(message)

        await IdempotencyMiddleware(shop, guard)(scope, receive, noting)

    watched = Asgi(look_at).post(key)

    assert watched.body == b"abc"
    assert states == [(None, "held"), (b"a", "held"), (b"b", "held"), (b"c", "done")]
    assert client.post(key).body == b"abc"


def test_a_response_of_known_length_is_recorded_with_its_last_byte_not_its_last_message(guard):
    states = []
    shop = Shop(headers=[(b"content-length", b"2")], chunks=[b"ok", b""])

    async def look_at(scope, receive, send):
        async def noting(message):
            found = await asyncio.to_thread(guard.look, scope["duly.claim"].key)
            states.append(found.state)
            await send(message)

        await IdempotencyMiddleware(shop, guard)(scope, receive, noting)

    Asgi(look_at).post()

    assert states == ["done"] * 3


def test_problems_can_link_to_documentation(guard):
    client = serve(guard, Shop(), required=["/"], documentation="https://shop.example/idempotency")

    answer = client.post(None)

    assert json.loads(answer.body)["type"] == "https://shop.example/idempotency#key-missing"
    assert answer.headers["link"] == '<https://shop.example/idempotency>; rel="describedby"'


def test_a_ledger_that_cannot_be_reached_is_503_for_requests_with_a_key(guard, monkeypatch):
    shop = Shop()

    def refuse(ops):
        raise StoreUnavailable("the server hung up")

    monkeypatch.setattr(guard.ledger, "apply", refuse)
    answer = serve(guard, shop).post()

    assert (answer.status, answer.code) == (503, "ledger-unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert shop.calls == []
    assert serve(guard, shop).post(None).status == 201


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "sqlite:////dev/null"])
def test_an_unreachable_ledger_at_the_first_request_is_503(url):
    shop = Shop()
    guard = Guard(url)

    answer = serve(guard, shop).post()
    guard.close()

    assert (answer.status, answer.code) == (503, "ledger-unavailable")
    assert shop.calls == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"methods": "POST"},
        {"methods": ["GET"]},
        {"methods": ["post"]},
        {"max_body": -1},
        {"max_kept": 0},
        {"ttl": 0},
        {"required": ["x"]},
    ],
)
@pytest.mark.stores("sqlite-wal")  # The store is not used.
def test_options_that_cannot_work_are_refused(guard, wrong):
    with pytest.raises(BadOption):
        IdempotencyMiddleware(Shop(), guard, **wrong)
