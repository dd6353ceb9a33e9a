"""The WSGI middleware, for Flask, Django and other synchronous applications."""

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from io import BytesIO
from itertools import chain
from typing import Any, Self, Unpack

from duly.errors import Busy, ClaimLost, KeyConflict, StoreError
from duly.guard import Guard
from duly.integrations.http_idempotency.policy import (
    ClaimedRequest,
    IdempotencyPolicy,
    MiddlewareOptions,
)
from duly.integrations.http_idempotency.replies import Headers, Reply
from duly.integrations.http_idempotency.request import Request, join_headers, parse_length
from duly.integrations.http_idempotency.response_recorder import ResponseRecorder

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
App = Callable[[Environ, StartResponse], Iterable[bytes]]

CLAIM = "duly.claim"
"""The name in the environ under which the application finds the claim of its request."""


class WSGIIdempotencyMiddleware:
    """Runs a request with an Idempotency-Key once, and replays its response."""

    def __init__(self, app: App, guard: Guard, **options: Unpack[MiddlewareOptions]) -> None:
        """Wrap an application. The options are those of `IdempotencyPolicy`."""
        self.app = app
        self._policy = IdempotencyPolicy(guard, **options)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        """Handle one request."""
        request = _request(environ)
        found = self._policy.screen(request)
        if found is None:
            return self.app(environ, start_response)
        if isinstance(found, Reply):
            return _answer(start_response, found)
        body = self._read(environ)
        if isinstance(body, Reply):
            return _answer(start_response, body)
        try:
            # The exchange releases the key, because it must be settled before the last byte is
            # sent.
            claim = self._policy.enter(found, request, body).__enter__()
        except (Busy, KeyConflict, StoreError) as error:
            return _answer(start_response, self._policy.problems.not_entered(error))
        if not claim.first:
            return _answer(start_response, self._policy.replay(claim))
        environ[CLAIM] = claim
        environ["wsgi.input"] = BytesIO(body)
        environ["CONTENT_LENGTH"] = str(len(body))
        exchange = _WsgiExchange(self._policy, ClaimedRequest(claim, found.scope), start_response)
        return exchange.refuse() or exchange.run(self.app, environ)

    def _read(self, environ: Environ) -> bytes | Reply:
        """Return the body of a request, or the reply to send if it cannot be read."""
        limit, problems = self._policy.max_body, self._policy.problems
        said = environ.get("CONTENT_LENGTH") or ""
        announced = parse_length(said)
        if announced is not None:
            size = announced
        elif said:
            return problems.body_unreadable()
        elif environ.get("wsgi.input_terminated"):
            size = limit + 1
        elif environ.get("HTTP_TRANSFER_ENCODING"):
            return problems.length_required()
        else:
            return b""
        body = _read_up_to(environ["wsgi.input"], size)
        if len(body) > limit:
            return problems.body_too_large(limit)
        if announced is not None and len(body) < announced:
            return problems.body_unreadable()
        return body


class _WsgiExchange:
    """One request that the application handles. Iterating over it yields the response."""

    def __init__(
        self, policy: IdempotencyPolicy, entry: ClaimedRequest, start_response: StartResponse
    ) -> None:
        self._policy = policy
        self._entry = entry
        self._start_response = start_response
        self._recording = ResponseRecorder(policy.keeps)
        self._head: tuple[Any, ...] | None = None
        """The start of the response, held back until the first part of the body is sent."""
        self._has_begun = False
        self._is_settled = False
        self._written: list[bytes] = []
        self._result: Iterable[bytes] = ()
        self._chunks = self._pass_on()

    def refuse(self) -> list[bytes] | None:
        """Return the reply to a caller whose quota is used up, or None if the request may start."""
        refusal = self._policy.refuse(self._entry)
        if refusal is None:
            return None
        self._release()
        return _answer(self._start_response, refusal)

    def run(self, app: App, environ: Environ) -> Self:
        """Call the application."""
        try:
            self._result = app(environ, self._start)
        except BaseException:
            self._release()
            raise
        return self

    def __iter__(self) -> Iterator[bytes]:
        return self._chunks

    def close(self) -> None:
        """Read the rest of a response that must be recorded for a retry, then close it."""
        try:
            while self._recording.is_kept and not self._is_settled:
                next(self._chunks, None)
        finally:
            self._release()
            if hasattr(self._result, "close"):
                self._result.close()

    def _start(
        self,
        status: str,
        headers: Headers,
        exc_info: Any = None,  # noqa: ANN401 - PEP 3333
    ) -> Callable[[bytes], None]:
        if self._has_begun:
            self._start_response(status, headers, exc_info)  # Raises, as PEP 3333 requires.
        self._head = (status, headers) if exc_info is None else (status, headers, exc_info)
        self._recording.start(int(status[:3]), headers)
        return self._written.append

    def _pass_on(self) -> Iterator[bytes]:
        """Yield the response, and settle the key before the last part."""
        try:
            if isinstance(self._result, list | tuple):
                self._recording.expect(sum(map(len, chain(self._written, self._result))))
            for chunk in self._all_chunks():
                self._recording.add(chunk)
                if self._recording.is_complete and (instead := self._settle()):
                    yield from instead
                    return
                self._begin()
                yield chunk
            if instead := self._settle():
                yield from instead
            else:
                self._begin()
        finally:
            self._release()

    def _all_chunks(self) -> Iterator[bytes]:
        """Yield what the application returns and what it writes, in order."""
        for chunk in chain([b""], self._result, [b""]):
            while self._written:
                yield self._written.pop(0)
            if chunk:
                yield chunk

    def _settle(self) -> Iterable[bytes] | None:
        """Settle the key if necessary. Return a reply to send instead if that fails."""
        if self._is_settled:
            return None
        self._is_settled = True
        try:
            self._policy.settle(self._entry, self._recording)
        except (ClaimLost, StoreError) as error:
            if self._has_begun:
                raise
            return _answer(self._start_response, self._policy.problems.not_recorded(error))
        return None

    def _begin(self) -> None:
        if self._head is not None:
            head, self._head = self._head, None
            self._has_begun = True
            self._start_response(*head)

    def _release(self) -> None:
        if not self._is_settled:
            self._is_settled = True
            self._policy.release(self._entry)


def _read_up_to(stream: Any, size: int) -> bytes:  # noqa: ANN401 - any stream
    body = bytearray()
    while size > 0 and (part := stream.read(size)):
        body += part
        size -= len(part)
    return bytes(body)


def _answer(start_response: StartResponse, reply: Reply) -> list[bytes]:
    try:
        phrase = HTTPStatus(reply.status).phrase
    except ValueError:
        phrase = "Unknown"
    start_response(f"{reply.status} {phrase}", list(reply.headers))
    return [reply.body or b""]


def _request(environ: Environ) -> Request:
    pairs = [
        (name.removeprefix("HTTP_").replace("_", "-"), str(value))
        for name, value in environ.items()
        if name.startswith("HTTP_") or name in {"CONTENT_TYPE", "CONTENT_LENGTH"}
    ]
    return Request(
        environ["REQUEST_METHOD"],
        environ.get("PATH_INFO", ""),
        environ.get("QUERY_STRING", ""),
        join_headers(pairs),
        environ.get("SCRIPT_NAME", ""),
        environ,
    )
