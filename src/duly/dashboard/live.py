"""Keeps a page up to date: the page requests its own address as a stream of events."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from duly.clock import monotonic
from duly.dashboard.viewer_limit import TooManyReads, ViewerLimit
from duly.errors import ReadTooSlow, StoreUnavailable
from duly.limits import (
    LIVE_LONGEST_SECONDS,
    LIVE_SECONDS,
    LIVE_SEND_SECONDS,
    LIVE_STREAMS,
    LIVE_STREAMS_OF_ONE,
)

_TIMES = re.compile(r"<time\b([^>]*)>[^<]*</time>")
"""The text of times changes constantly, and the page's script updates it."""
_TROUBLE = b"trouble"
_PAUSE_FACTOR = 4
"""The pause before the next rendering, as a multiple of the time that rendering took."""
_SILENCE = 15
"""After this many renderings without a change, send a comment to keep the stream alive."""


class LivePages:
    """The streams of open pages."""

    def __init__(self) -> None:
        self.limit = ViewerLimit(LIVE_STREAMS_OF_ONE)

    def answer(
        self, request: Request, render: Callable[[], Awaitable[str]], *, viewer: str
    ) -> Response:
        """Return a stream that sends the page's content whenever it changes."""
        headers = {"Retry-After": "30"}
        if not self.limit.has_room(viewer):
            return PlainTextResponse("You have too many pages open.\n", 429, headers=headers)
        if self.limit.open.total() >= LIVE_STREAMS:
            return PlainTextResponse("Too many pages are open.\n", 503, headers=headers)
        return _LiveResponse(self, viewer, self._events(request, render))

    async def _events(
        self, request: Request, render: Callable[[], Awaitable[str]]
    ) -> AsyncGenerator[str, None]:
        seen = b""
        quiet = 0
        ends_at = monotonic() + LIVE_LONGEST_SECONDS
        # A stream ends after a while, and the page opens another one, which checks the viewer
        # again.
        while monotonic() < ends_at and not await request.is_disconnected():
            began = monotonic()
            try:
                text = await render()
            except StoreUnavailable as error:
                # The page keeps its content. Once the database answers, the content is sent in any
                # case.
                if seen != _TROUBLE:
                    slow = isinstance(error, ReadTooSlow)
                    words = "is slow" if slow else "does not answer"
                    yield f"event: trouble\ndata: The database {words}.\n\n"
                seen = _TROUBLE
                await asyncio.sleep(_pause(began))
                continue
            except TooManyReads:
                # The page keeps its content: other requests of the same viewer came first.
                await asyncio.sleep(_pause(began))
                continue
            digest = hashlib.sha256(_TIMES.sub(r"<time\1>", text).encode()).digest()
            quiet += 1
            if digest != seen:
                seen, quiet = digest, 0
                yield (
                    "event: page\n"
                    + "".join(f"data: {line}\n" for line in text.splitlines())
                    + "\n"
                )
            elif quiet >= _SILENCE:
                quiet = 0
                yield ": still here\n\n"
            await asyncio.sleep(_pause(began))


class _LiveResponse(StreamingResponse):
    """Counts as open until it ends. It ends when a message cannot be sent for a while.

    A WSGI server does not report that a client has disconnected, and a slow client blocks the
    stream. In both cases, messages cannot be sent.
    """

    def __init__(self, streams: LivePages, viewer: str, events: AsyncGenerator[str, None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._streams = streams
        self._viewer = viewer
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_soon(message: Message) -> None:
            async with asyncio.timeout(LIVE_SEND_SECONDS):
                await send(message)

        with self._streams.limit.counted(self._viewer):
            async with aclosing(self._events):
                with suppress(TimeoutError, ClientDisconnect):
                    await super().__call__(scope, receive, send_soon)


def _pause(began: float) -> float:
    """Return how long to wait. A page that is slow to render is rendered less often."""
    return max(LIVE_SECONDS, _PAUSE_FACTOR * (monotonic() - began))
