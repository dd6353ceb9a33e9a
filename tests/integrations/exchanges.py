"""Requests to plain ASGI and WSGI callables, without a server."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from typing import Any


@dataclass
class Answer:
    """The response to a request."""

    status: int
    headers: dict[str, str]
    body: bytes
    messages: list[Any] = field(default_factory=list)

    @property
    def code(self) -> str:
        """Return the code of the problem."""
        assert self.headers["content-type"] == "application/problem+json"
        problem = json.loads(self.body)
        assert problem["status"] == self.status
        return problem["code"]

    @property
    def is_replay(self) -> bool:
        """Return whether the response was replayed without calling the application."""
        return self.headers.get("idempotent-replayed") == "true"


@dataclass
class Asgi:
    """A client of an ASGI application."""

    app: Any
    extensions: dict[str, Any] = field(default_factory=dict)

    def post(
        self,
        key: str | bytes | None = "k",
        body: bytes = b"{}",
        *,
        path: str = "/pay",
        headers: Iterable[tuple[str, str]] = (),
        **options: Any,
    ) -> Answer:
        """Send a request on a new event loop."""
        return asyncio.run(self.apost(key, body, path=path, headers=headers, **options))

    async def apost(
        self,
        key: str | bytes | None = "k",
        body: bytes = b"{}",
        *,
        path: str = "/pay",
        query: bytes = b"",
        method: str = "POST",
        headers: Iterable[tuple[str, str]] = (),
        caller: str | None = "ann",
        hangs_up: bool = False,
        **more: Any,
    ) -> Answer:
        """Send a request in two parts. With `hangs_up`, the client does not read the response."""
        named = headers if caller is None else [*headers, ("authorization", caller)]
        pairs = [(name.lower().encode(), value.encode("latin-1")) for name, value in named]
        if key is not None:
            raw = key if isinstance(key, bytes) else key.encode("latin-1")
            pairs.append((b"idempotency-key", raw))
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query,
            "headers": pairs,
            "extensions": self.extensions,
        } | more
        coming = [
            {"type": "http.request", "body": body[:1], "more_body": True},
            {"type": "http.request", "body": body[1:], "more_body": False},
        ]
        sent: list[Any] = []

        async def receive() -> Any:
            if coming:
                return coming.pop(0)
            if not hangs_up:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if hangs_up:
                raise OSError("the client has hung up")

        await self.app(scope, receive, send)
        return _answer_of(sent)


def _answer_of(sent: list[Any]) -> Answer:
    starts = [message for message in sent if message["type"] == "http.response.start"]
    assert len(starts) <= 1
    if not starts:
        return Answer(0, {}, b"", sent)
    headers = {name.decode(): value.decode("latin-1") for name, value in starts[0]["headers"]}
    body = b"".join(message.get("body", b"") for message in sent)
    return Answer(starts[0]["status"], headers, body, sent)


@dataclass
class Wsgi:
    """A client of a WSGI application."""

    app: Any

    def post(
        self,
        key: str | None = "k",
        body: bytes = b"{}",
        *,
        path: str = "/pay",
        headers: Iterable[tuple[str, str]] = (),
        takes: int | None = None,
        caller: str | None = "ann",
        **environ: Any,
    ) -> Answer:
        """Send a request. Read this many chunks of the response, then hang up."""
        environ = {
            "REQUEST_METHOD": "POST",
            "SCRIPT_NAME": "",
            "PATH_INFO": path,
            "QUERY_STRING": "",
            "CONTENT_LENGTH": str(len(body)),
            "wsgi.input": BytesIO(body),
        } | environ
        named = headers if caller is None else [*headers, ("authorization", caller)]
        for name, value in named:
            environ[f"HTTP_{name.upper().replace('-', '_')}"] = value
        if key is not None:
            environ["HTTP_IDEMPOTENCY_KEY"] = key
        starts: list[Any] = []

        def start_response(status: str, headers: Any, exc_info: Any = None) -> Any:
            starts.append((status, headers))

        result = self.app(environ, start_response)
        chunks = []
        try:
            for number, chunk in enumerate(result):
                if number == takes:
                    break
                chunks.append(chunk)
        finally:
            if hasattr(result, "close"):
                result.close()
        status, pairs = starts[-1]
        headers = {name.lower(): value for name, value in pairs}
        return Answer(int(status[:3]), headers, b"".join(chunks), starts)
