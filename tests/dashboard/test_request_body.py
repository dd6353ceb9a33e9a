"""Refused bodies: the server closes the connection and does not parse the rest."""

import asyncio
import socket
from urllib.parse import urlsplit
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest
from a2wsgi import ASGIMiddleware

from duly.dashboard import TokenAuth, dashboard
from duly.limits import HTTP_BODY_BYTES
from tests.dashboard.test_bounds import post_in_pieces

pytestmark = pytest.mark.stores("sqlite")
TOKEN = "Vq7-dX2mR9_pLk4TzB8nWc5YhJ3f"  # noqa: S105 - for these tests only
CHUNKED = "Transfer-Encoding: chunked"
TOO_LONG = f"Content-Length: {HTTP_BODY_BYTES + 1}"
NEXT = b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"


def answer_of(address, line, length, body, *, host="localhost"):
    """Return the server's bytes until it closes the connection. The client never closes it."""
    place = urlsplit(address)
    head = (line, f"Host: {host}", "Content-Type: application/x-www-form-urlencoded", length)
    with socket.create_connection((place.hostname, place.port), timeout=20) as connection:
        connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        found = b""
        while part := connection.recv(65_536):
            found += part
    return found


@pytest.mark.parametrize(
    ("line", "length", "host", "status"),
    [
        ("POST /login HTTP/1.1", CHUNKED, "localhost", 411),
        ("POST /queues/mail/pause HTTP/1.1", CHUNKED, "localhost", 411),
        ("GET /login HTTP/1.1", CHUNKED, "localhost", 411),
        ("GET /static/dashboard.js HTTP/1.1", CHUNKED, "localhost", 411),
        ("POST /static/dashboard.js HTTP/1.1", CHUNKED, "localhost", 411),
        ("POST /login HTTP/1.1", CHUNKED, "other.example.com", 421),
        ("POST /login HTTP/1.1", TOO_LONG, "localhost", 413),
        ("GET /login HTTP/1.1", TOO_LONG, "localhost", 413),
        ("POST /login HTTP/1.1", f"Content-Length: {'9' * 19}", "localhost", 413),
        (
            "POST /login HTTP/1.1",
            "Content-Length: 10000",
            "localhost",
            413,
        ),  # The body arrives slowly.
    ],
)
def test_a_server_closes_the_connection_of_a_body_that_it_does_not_read(
    shop, serve, monkeypatch, line, length, host, status
):
    monkeypatch.setattr("duly.dashboard.request_body.HTTP_FORM_SECONDS", 0.1)
    address = serve(dashboard(shop.app, auth=TokenAuth(TOKEN), hosts={"localhost"}))
    pieces = b"1\r\nx\r\n" * 100 + (b"0\r\n\r\n" + NEXT if length == CHUNKED else b"")

    answer = answer_of(address, line, length, pieces, host=host)

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nconnection: close\r\n" in answer.lower()
    assert answer.count(b"HTTP/1.1 ") == 1, "the rest of the body is not read"


def test_a_body_without_a_length_is_refused_before_any_of_it_is_read(shop, serve):
    address = serve(dashboard(shop.app, auth=TokenAuth(TOKEN)))

    answer = answer_of(address, "POST /login HTTP/1.1", CHUNKED, b"1\r\nx\r\n")

    assert answer.startswith(b"HTTP/1.1 411 ")


def test_a_body_that_is_read_leaves_the_connection_open(shop, serve):
    address = serve(dashboard(shop.app, auth=TokenAuth(TOKEN)))
    last = NEXT.replace(b"localhost", b"localhost\r\nConnection: close")

    answers = answer_of(address, "POST /login HTTP/1.1", "Content-Length: 3", b"a=b" + last)

    assert answers.startswith(b"HTTP/1.1 403 "), "the form has no token"
    assert answers.count(b"HTTP/1.1 ") == 2


def test_a_wsgi_response_has_no_connection_header(shop):
    environ = {"HTTP_HOST": "localhost", "HTTP_TRANSFER_ENCODING": "chunked"}
    environ |= {"REMOTE_ADDR": "127.0.0.1", "REMOTE_PORT": "1", "QUERY_STRING": ""}
    setup_testing_defaults(environ)
    told = []
    pages = validator(ASGIMiddleware(dashboard(shop.app, auth=TokenAuth(TOKEN))))

    parts = pages(environ, lambda status, headers, _error=None: told.append((status, headers)))
    list(parts)
    parts.close()

    ((status, headers),) = told
    assert status.startswith("411 ")
    assert "connection" not in {name.lower() for name, _ in headers}


def test_a_body_of_http_2_needs_no_content_length(shop):
    parts = [b"x", b"y"]

    async def receive():
        body = parts.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(parts)}

    pages = dashboard(shop.app, auth=lambda _: "ann", write=True)

    assert post_in_pieces(pages, receive) == 403, "the form was read and has no token"


def test_a_truncated_form_is_not_carried_out(shop):
    pages = dashboard(shop.app, auth=TokenAuth(TOKEN), write=True)
    messages = [
        {"type": "http.request", "body": b"limit=1", "more_body": True},
        {"type": "http.disconnect"},
    ]
    headers = [
        (b"host", b"localhost"),
        (b"content-length", b"9"),
        (b"content-type", b"application/x-www-form-urlencoded"),
        (b"cookie", b"duly_csrf=" + b"a" * 64),
        (b"x-duly-csrf", b"a" * 64),
        (b"authorization", f"Bearer {TOKEN}".encode()),
    ]
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "path": "/queues/mail/pause",
        "root_path": "",
        "query_string": b"",
        "headers": headers,
        "client": ("10.0.0.1", 4000),
    }
    sent = []

    async def receive():
        return messages.pop(0)

    async def send(message):
        sent.append(message)

    asyncio.run(pages(scope, receive, send))

    assert sent[0]["status"] == 400
    assert not any(queue.paused for queue in shop.app.queues.list())
