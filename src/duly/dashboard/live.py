"""Keeps a page up to date: the page's own address, asked for as a stream of events."""

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
"""How long ago something was changes all the time, and is counted on by the page itself."""
_TROUBLE = b"trouble"
_PAUSE_FACTOR = 4
"""How many times as long as a page took to be made it is left alone."""
_SILENCE = 15
"""After so many looks without a change, a word that we are still there."""


class LivePages:
    """The pages that are kept up to date."""

    def __init__(self) -> None:
        self.limit = ViewerLimit(LIVE_STREAMS_OF_ONE)

    def answer(
        self, request: Request, render: Callable[[], Awaitable[str]], *, viewer: str
    ) -> Response:
        """Return a stream of what the page shows, whenever that changes."""
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
        # A stream ends at some time, and the page asks for another: so it is asked again who
        # looks at it.
        while monotonic() < ends_at and not await request.is_disconnected():
            began = monotonic()
            try:
                text = await render()
            except StoreUnavailable as error:
                # What is shown stays. When the database answers, it is told whatever it was.
                if seen != _TROUBLE:
                    slow = isinstance(error, ReadTooSlow)
                    words = "is slow" if slow else "does not answer"
                    yield f"event: trouble\ndata: The database {words}.\n\n"
                seen = _TROUBLE
                await asyncio.sleep(_pause(began))
                continue
            except TooManyReads:
                # What is shown stays: other requests of the same viewer were first.
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
    """Counts while it is open, and ends when nobody takes what it sends.

    A server that speaks WSGI tells nobody that a client is gone, and one that is slow holds what
    waits for it: in both cases what is sent is never taken.
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
    """Return how long to wait: a page that costs much is made anew the more rarely."""
    return max(LIVE_SECONDS, _PAUSE_FACTOR * (monotonic() - began))
