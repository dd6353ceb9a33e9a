"""`duly.integrations.http_idempotency`: clients that hang up, claims that are lost, and WSGI."""

import asyncio
import threading
from contextlib import suppress

import pytest

from duly.errors import ClaimLost, StoreUnavailable
from duly.guard import Guard
from duly.integrations.http_idempotency import IdempotencyMiddleware, WSGIIdempotencyMiddleware
from duly.limits import RESULT_BYTES
from duly.store.ops.guard import FinishKey
from tests.integrations.exchanges import Asgi, Wsgi


@pytest.fixture
def guard(store_url: str):
    """Yield a guard on a fresh store of each kind."""
    guard = Guard(store_url, lease=2)
    yield guard
    # A cancelled request leaves a thread that records its response. It would open the guard again.
    for thread in threading.enumerate():
        if thread.name == "duly-async-thread":
            thread.join(20)
    guard.close()


def streaming(*chunks, listens=False, status=200, calls=None):
    """Return an ASGI application that sends these chunks and may end when the client hangs up."""

    async def stream(receive, send):
        await send({"type": "http.response.start", "status": status, "headers": []})
        for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body"})

    async def app(scope, receive, send):
        await receive()
        if calls is not None:
            calls.append(scope)
        sending = asyncio.create_task(stream(receive, send))
        if not listens:
            await sending
            return
        hearing = asyncio.create_task(receive())
        await asyncio.wait({sending, hearing}, return_when=asyncio.FIRST_COMPLETED)
        for task in (sending, hearing):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    return app


@pytest.mark.parametrize("listens", [False, True])
def test_a_response_is_recorded_even_if_the_client_hangs_up_midway(guard, listens):
    calls = []
    app = streaming(*[b"a"] * 50, listens=listens, calls=calls)
    client = Asgi(IdempotencyMiddleware(app, guard))

    client.post(hangs_up=True)
    again = client.post()

    assert (again.body, again.is_replay) == (b"a" * 50, True)
    assert len(calls) == 1


def test_an_endless_response_ends_when_it_is_too_large_and_the_client_has_hung_up(guard):
    chunks = (b"x" * 100_000 for _ in iter(int, 1))
    client = Asgi(IdempotencyMiddleware(streaming(), guard))

    async def endless(scope, receive, send):
        async def stream():
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await asyncio.sleep(0)

        await receive()
        sending = asyncio.create_task(stream())
        assert (await receive())["type"] == "http.disconnect"
        sending.cancel()

    client.app.app = endless
    client.post(hangs_up=True)

    assert client.post().code == "response-not-kept"


def test_a_request_whose_client_hangs_up_before_its_end_is_not_executed(guard):
    calls = []
    app = IdempotencyMiddleware(streaming(calls=calls), guard)
    sent = []

    async def main():
        async def receive():
            return {"type": "http.disconnect"}

        headers = [(b"idempotency-key", b"k"), (b"authorization", b"ann")]
        scope = {"type": "http", "method": "POST", "path": "/", "headers": headers}
        await app(scope, receive, sent.append)

    asyncio.run(main())

    assert calls == []
    assert sent == []


def test_a_cancelled_request_may_be_executed_again(guard):
    started = asyncio.Event()
    calls = []

    async def app(scope, receive, send):
        calls.append(scope)
        started.set()
        if len(calls) == 1:
            await asyncio.Event().wait()
        await streaming(b"ok")(scope, receive, send)

    async def main():
        client = Asgi(IdempotencyMiddleware(app, guard))
        first = asyncio.create_task(client.apost())
        await started.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await client.apost()

    assert asyncio.run(main()).body == b"ok"


def test_a_response_is_recorded_even_if_the_request_is_cancelled_meanwhile(guard, monkeypatch):
    apply = guard.ledger.apply
    loop_of = []

    def strike(ops):
        if isinstance(ops[0], FinishKey):
            loop, task = loop_of
            loop.call_soon_threadsafe(task.cancel)
        return apply(ops)

    async def main():
        client = Asgi(IdempotencyMiddleware(streaming(b"ok"), guard))
        first = asyncio.create_task(client.apost())
        loop_of[:] = [asyncio.get_running_loop(), first]
        with suppress(asyncio.CancelledError):
            await first
        monkeypatch.undo()
        again = await client.apost()
        while again.status == 409:
            again = await client.apost()
        return again

    monkeypatch.setattr(guard.ledger, "apply", strike)

    assert asyncio.run(main()).is_replay


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_handler_that_lost_its_claim_does_not_answer_success(guard, kind, monkeypatch):
    apply = guard.ledger.apply
    monkeypatch.setattr(guard.ledger, "apply", lambda ops: _disowning(apply, ops))

    async def app(scope, receive, send):
        await streaming(b"ok")(scope, receive, _in_one(send))

    answer = (
        Asgi(IdempotencyMiddleware(app, guard)).post()
        if kind == "asgi"
        else Wsgi(WSGIIdempotencyMiddleware(plain([b"ok"]), guard)).post()
    )

    assert (answer.status, answer.code) == (500, "claim-lost")


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_stream_that_lost_its_claim_is_aborted(guard, kind, monkeypatch):
    apply = guard.ledger.apply
    monkeypatch.setattr(guard.ledger, "apply", lambda ops: _disowning(apply, ops))

    client = (
        Asgi(IdempotencyMiddleware(streaming(b"a", b"b"), guard))
        if kind == "asgi"
        else Wsgi(WSGIIdempotencyMiddleware(plain(iter([b"a", b"b"])), guard))
    )

    with pytest.raises(ClaimLost):
        client.post()


def test_a_success_that_cannot_be_recorded_is_answered_with_500(guard, monkeypatch):
    apply = guard.ledger.apply

    def refuse(ops):
        if isinstance(ops[0], FinishKey):
            raise StoreUnavailable("the server hung up")
        return apply(ops)

    monkeypatch.setattr(guard.ledger, "apply", refuse)
    answer = Wsgi(WSGIIdempotencyMiddleware(plain([b"ok"]), guard)).post()

    assert (answer.status, answer.code) == (500, "not-recorded")


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
@pytest.mark.stores("sqlite-wal")  # The store is not used.
def test_scopes_other_than_http_pass_through(guard, kind):
    seen = []

    async def app(scope, receive, send):
        seen.append((scope, receive, send))

    given = ({"type": kind}, object(), object())
    asyncio.run(IdempotencyMiddleware(app, guard)(*given))

    assert seen == [given]


def test_the_pathsend_extension_is_hidden_from_the_application(guard):
    calls = []
    client = Asgi(IdempotencyMiddleware(streaming(b"ok", calls=calls), guard))
    client.extensions = {"http.response.pathsend": {}, "http.response.debug": {}}

    client.post()

    assert calls[0]["extensions"] == {"http.response.debug": {}}


# -- WSGI --


def plain(chunks, status="200 OK", headers=(), calls=None):
    """Return a WSGI application that returns these chunks."""

    def app(environ, start_response):
        if calls is not None:
            calls.append(environ["wsgi.input"].read())
        start_response(status, list(headers))
        return chunks

    return app


def test_wsgi_a_repeat_gets_the_first_response(guard):
    calls = []
    headers = [("Set-Cookie", "a=1"), ("Content-Type", "text/plain")]
    client = Wsgi(
        WSGIIdempotencyMiddleware(plain([b"o", b"k"], headers=headers, calls=calls), guard)
    )

    first, again = client.post(), client.post()

    assert (first.status, first.body, first.is_replay) == (200, b"ok", False)
    assert (again.status, again.body, again.is_replay) == (200, b"ok", True)
    assert again.headers["content-type"] == "text/plain"
    assert "set-cookie" not in again.headers
    assert client.post(body=b"[]").status == 422
    assert client.post(None).status == 200
    assert calls == [b"{}", b"{}"]


def test_wsgi_an_error_releases_the_key(guard):
    def broken(environ, start_response):
        raise ConnectionError("the bank hung up")

    def broken_midway(environ, start_response):
        start_response("200 OK", [])
        yield b"a"
        raise ConnectionError("the bank hung up")

    client = Wsgi(WSGIIdempotencyMiddleware(broken, guard))
    for app in (broken, broken_midway):
        client.app.app = app
        with pytest.raises(ConnectionError):
            client.post()
    client.app.app = plain([b"no"], status="503 Service Unavailable")
    assert client.post().status == 503
    client.app.app = plain([b"ok"])

    assert client.post().body == b"ok"
    assert client.post().is_replay


def test_wsgi_a_response_is_recorded_even_if_the_client_hangs_up_midway(guard):
    closed = []

    class Stream(list):
        def close(self):
            closed.append(guard.look(keys[0]).state)

    keys = []

    def app(environ, start_response):
        keys.append(environ["duly.claim"].key)
        start_response("200 OK", [("Content-Length", "3")])
        return Stream([b"a", b"b", b"c"])

    client = Wsgi(WSGIIdempotencyMiddleware(app, guard))
    client.post(takes=1)

    assert client.post().body == b"abc"
    assert closed == ["done"]


def test_wsgi_an_endless_response_ends_when_it_is_too_large(guard):
    client = Wsgi(WSGIIdempotencyMiddleware(plain(iter(lambda: b"x" * 100_000, b"")), guard))

    client.post(takes=1)

    assert client.post().code == "response-not-kept"


def test_wsgi_written_chunks_precede_returned_chunks(guard):
    def app(environ, start_response):
        write = start_response("200 OK", [])
        write(b"a")
        return [b"b"]

    client = Wsgi(WSGIIdempotencyMiddleware(app, guard))

    assert client.post().body == b"ab"
    assert client.post().body == b"ab"


@pytest.mark.parametrize(
    ("environ", "status", "code"),
    [
        ({"CONTENT_LENGTH": "9"}, 400, "body-incomplete"),
        ({"CONTENT_LENGTH": "many"}, 400, "body-incomplete"),
        ({"CONTENT_LENGTH": "0" * 5000}, 400, "body-incomplete"),
        ({"CONTENT_LENGTH": "", "HTTP_TRANSFER_ENCODING": "chunked"}, 411, "length-required"),
        ({"CONTENT_LENGTH": str(RESULT_BYTES + 1)}, 413, "body-too-large"),
    ],
)
@pytest.mark.stores("sqlite-wal")  # The store is not used.
def test_wsgi_a_request_whose_body_cannot_be_read_is_refused(guard, environ, status, code):
    calls = []

    answer = Wsgi(WSGIIdempotencyMiddleware(plain([b""], calls=calls), guard)).post(**environ)

    assert (answer.status, answer.code) == (status, code)
    assert calls == []


def test_wsgi_a_chunked_body_is_read_where_the_server_ends_it(guard):
    calls = []
    client = Wsgi(WSGIIdempotencyMiddleware(plain([b""], calls=calls), guard, max_body=3))
    chunked = {"CONTENT_LENGTH": "", "wsgi.input_terminated": True}

    assert client.post(body=b"123", **chunked).status == 200
    assert client.post(body=b"1234", **chunked).status == 413
    assert calls == [b"123"]


def _disowning(apply, ops):
    """Answer that another claim holds the key."""
    return [False] if isinstance(ops[0], FinishKey) else apply(ops)


def _in_one(send):
    """Send the body in one message, as most applications do."""
    parts = []

    async def collecting(message):
        if message["type"] != "http.response.body":
            await send(message)
            return
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            await send({"type": "http.response.body", "body": b"".join(parts)})

    return collecting
