"""The ASGI middleware, for FastAPI, Starlette and other asynchronous applications."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, Unpack

from duly.errors import Busy, ClaimLost, KeyConflict, StoreError
from duly.extend import run_in_thread
from duly.guard import Guard
from duly.integrations.http_idempotency.policy import (
    ClaimedRequest,
    IdempotencyPolicy,
    KeyedRequest,
    MiddlewareOptions,
)
from duly.integrations.http_idempotency.replies import Reply
from duly.integrations.http_idempotency.request import Request, join_headers, strip_root
from duly.integrations.http_idempotency.response_recorder import ResponseRecorder

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CLAIM = "duly.claim"
"""The name in the scope under which the application finds the claim of its request."""

_OUTSIDE_MIDDLEWARE = {
    "http.response.pathsend",
    "http.response.zerocopysend",
    "http.response.trailers",
}
"""Extensions that would send part of a response outside `http.response.body` messages."""


class IdempotencyMiddleware:
    """Runs a request with an Idempotency-Key once, and replays its response."""

    def __init__(self, app: App, guard: Guard, **options: Unpack[MiddlewareOptions]) -> None:
        """Wrap an application. The options are those of `IdempotencyPolicy`."""
        self.app = app
        self._policy = IdempotencyPolicy(guard, **options)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection. Anything but an HTTP request is passed on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = _request(scope)
        found = self._policy.screen(request)
        if found is None:
            await self.app(scope, receive, send)
        elif isinstance(found, Reply):
            await _answer(send, found)
        else:
            await self._guarded(found, request, scope, receive, send)

    async def _guarded(
        self, ticket: KeyedRequest, request: Request, scope: Scope, receive: Receive, send: Send
    ) -> None:
        body = await _read(receive, self._policy.max_body)
        if body is None:
            return
        if len(body) > self._policy.max_body:
            await _answer(send, self._policy.problems.body_too_large(self._policy.max_body))
            return
        try:
            # The exchange releases the key, because it must be settled before the last byte is
            # sent.
            claim = await self._policy.enter(ticket, request, body).__aenter__()
        except (Busy, KeyConflict, StoreError) as error:
            await _answer(send, self._policy.problems.not_entered(error))
            return
        if not claim.first:
            await _answer(send, self._policy.replay(claim))
            return
        entry = ClaimedRequest(claim, ticket.scope)
        exchange = _AsgiExchange(self._policy, entry, body, receive, send)
        # Changed in place, as routers do: an outer middleware reads the route from this scope.
        scope[CLAIM] = claim
        if extensions := scope.get("extensions"):
            scope["extensions"] = {
                name: told for name, told in extensions.items() if name not in _OUTSIDE_MIDDLEWARE
            }
        try:
            refusal = await run_in_thread(lambda: self._policy.refuse(entry))
            if refusal is None:
                await self.app(scope, exchange.receive, exchange.send)
        finally:
            await exchange.close()
        if refusal is not None:
            await _answer(send, refusal)
        exchange.check()


class _AsgiExchange:
    """One request that the application handles, and its response."""

    def __init__(
        self,
        policy: IdempotencyPolicy,
        entry: ClaimedRequest,
        body: bytes,
        receive: Receive,
        send: Send,
    ) -> None:
        self._policy = policy
        self._entry = entry
        self._request: Message | None = {"type": "http.request", "body": body, "more_body": False}
        self._receive = receive
        self._send = send
        self._recording = ResponseRecorder(policy.keeps)
        self._head: Message | None = None
        """The start of the response, held back until the first part of the body is sent."""
        self._has_begun = False
        self._is_settled = False
        self._is_over = False
        """Whether nothing more can be sent to the client."""
        self._error: ClaimLost | StoreError | None = None
        self._may_end = asyncio.Event()

    async def receive(self) -> Message:
        """Return the request to the application, and hide from it that the client has disconnected.

        Most applications would stop there, with half an effect and half a response, but a retry
        must get the whole response. A disconnect is reported only when nothing is left to record.
        """
        if self._request is not None:
            request, self._request = self._request, None
            return request
        await self._may_end.wait()
        return await self._receive()

    async def send(self, message: Message) -> None:
        """Send a part of the response, and settle the key before the last part."""
        self.check()
        match message["type"]:
            case "http.response.start" if not self._has_begun:
                self._head = message
                self._recording.start(message["status"], _texts(message.get("headers", ())))
                if not self._recording.is_kept:
                    self._may_end.set()
            case "http.response.body":
                self._recording.add(message.get("body", b""))
                is_last = not message.get("more_body", False)
                if (is_last or self._recording.is_complete) and not self._is_settled:
                    await self._settle()
                await self._pass_on(message)
            case _:
                await self._pass_on(message)

    async def close(self) -> None:
        """Release the key if the application ended without a complete response."""
        if not self._is_settled:
            self._is_settled = True
            await run_in_thread(lambda: self._policy.release(self._entry))

    def check(self) -> None:
        """Raise an error that must prevent a started response from looking complete."""
        if self._error is not None and self._has_begun:
            raise self._error

    async def _settle(self) -> None:
        # Set before the call, which completes even if this task is cancelled meanwhile.
        self._is_settled = True
        try:
            await run_in_thread(lambda: self._policy.settle(self._entry, self._recording))
        except (ClaimLost, StoreError) as error:
            self._error = error
            self.check()
            self._is_over = True
            with suppress(OSError):
                await _answer(self._send, self._policy.problems.not_recorded(error))
        finally:
            self._may_end.set()

    async def _pass_on(self, message: Message) -> None:
        if self._is_over:
            return
        try:
            if self._head is not None:
                head, self._head = self._head, None
                self._has_begun = True
                await self._send(head)
            await self._send(message)
        except OSError:
            # The client has disconnected. The response is still recorded, for a retry.
            self._is_over = True


async def _read(receive: Receive, limit: int) -> bytes | None:
    """Return the body, or its start if it exceeds the limit. Return None after a disconnect."""
    body = bytearray()
    has_more = True
    while has_more and len(body) <= limit:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return bytes(body)


async def _answer(send: Send, reply: Reply) -> None:
    headers = [
        (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in reply.headers
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body or b"", "more_body": False})


def _request(scope: Scope) -> Request:
    root_path = scope.get("root_path", "").rstrip("/")
    return Request(
        scope["method"],
        strip_root(scope["path"], root_path),
        scope.get("query_string", b"").decode("latin-1"),
        join_headers(_texts(scope["headers"])),
        root_path,
        scope,
    )


def _texts(headers: Any) -> list[tuple[str, str]]:  # noqa: ANN401 - pairs of bytes
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
