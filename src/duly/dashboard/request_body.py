"""Reads request bodies completely before a page uses them, or refuses them unread.

An HTTP/1.1 server parses the rest of a refused body before it reads the next request from that
connection. For a body in one-byte chunks, that takes half a minute of the server's only thread. The
response therefore closes the connection. A chunked body, which has no length, is not read at all.
"""

import asyncio
import re
from typing import NamedTuple

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from duly.limits import HTTP_BODY_BYTES, HTTP_FORM_SECONDS

_SAFE = frozenset({"GET", "HEAD"})
_LENGTH = re.compile("[0-9]{1,9}")


class RefusedBody(NamedTuple):
    """The reason that a body is not read."""

    status: int
    words: str


_NO_LENGTH = RefusedBody(
    411,
    "This request has no Content-Length with the length of its body. If it came through a proxy, "
    "let the proxy buffer the whole request before it forwards it.",
)
_CUT_OFF = RefusedBody(400, "The connection ended before this request was complete.")
_TOO_LONG = RefusedBody(
    413,
    f"This form is larger than {HTTP_BODY_BYTES // 1024} KB, or took longer to send than "
    f"{HTTP_FORM_SECONDS:.0f} s.",
)


async def read_body(request: Request) -> Receive | RefusedBody:
    """Return a `receive` that returns the whole body each time, or the reason for a refusal.

    The body of a GET request is not used, so it is not read.
    """
    if "transfer-encoding" in request.headers:
        return _NO_LENGTH
    length = request.headers.get("content-length") or "0"
    if not _LENGTH.fullmatch(length) or int(length) > HTTP_BODY_BYTES:
        return _TOO_LONG
    if request.method in _SAFE:
        return request.receive
    body = await _read(request.receive)
    if isinstance(body, RefusedBody):
        return body

    async def again() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def closes_connection(scope: Scope) -> bool:
    """Return whether the server of a request supports `Connection: close`.

    HTTP/2 has no such header, and a WSGI application must not send it.
    """
    return scope.get("http_version", "").startswith("1") and "wsgi_environ" not in scope


async def _read(receive: Receive) -> bytes | RefusedBody:
    """Return the body, or a refusal if it is too long, too slow or incomplete.

    An incomplete form could name another task or a smaller number than its sender meant. In HTTP/2,
    a body need not announce its length.
    """
    body = bytearray()  # A bytearray grows without copies, however small the chunks are.
    more = True
    try:
        async with asyncio.timeout(HTTP_FORM_SECONDS):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    return _CUT_OFF
                body += message.get("body", b"")
                more = message.get("more_body", False)
                if len(body) > HTTP_BODY_BYTES:
                    return _TOO_LONG
    except TimeoutError:
        return _TOO_LONG
    return bytes(body)
