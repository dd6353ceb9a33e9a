"""Keeps a page up to date: the page's own address, asked for as a stream of events."""

import asyncio
import hashlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Message, Send

from duly.clock import monotonic
from duly.errors import ReadTooSlow, StoreUnavailable
from duly.limits import LIVE_LONGEST_SECONDS, LIVE_SECONDS, LIVE_SEND_SECONDS, LIVE_STREAMS

_TIMES = re.compile(r"<time\b([^>]*)>[^<]*</time>")
"""How long ago something was changes all the time, and is counted on by the page itself."""
_TROUBLE = b"trouble"
_RARER = 4
"""How many times as long as a page took to be made it is left alone."""
_SILENCE = 15
"""After so many looks without a change, a word that we are still there."""


class Streams:
    """The pages that are kept up to date."""

    def __init__(self) -> None:
        self._open = 0

    def answer(self, request: Request, render: Callable[[], Awaitable[str]]) -> Response:
        """Return a stream of what the page shows, whenever that changes."""
        if self._open >= LIVE_STREAMS:
            headers = {"Retry-After": "30"}
            return PlainTextResponse("Too many pages are open.\n", 503, headers=headers)
        return _Stream(self._events(request, render), media_type="text/event-stream")

    async def _events(
        self, request: Request, render: Callable[[], Awaitable[str]]
    ) -> AsyncGenerator[str, None]:
        self._open += 1
        seen = b""
        quiet = 0
        ends_at = monotonic() + LIVE_LONGEST_SECONDS
        try:
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
        finally:
            self._open -= 1


class _Stream(StreamingResponse):
    """Ends when nobody takes what it sends: some servers tell of a closed page by nothing else."""

    def __init__(self, events: AsyncGenerator[str, None], *, media_type: str) -> None:
        super().__init__(events, media_type=media_type)
        self._events = events

    async def stream_response(self, send: Send) -> None:
        """Send the events as they come."""

        async def send_soon(message: Message) -> None:
            try:
                async with asyncio.timeout(LIVE_SEND_SECONDS):
                    await send(message)
            except TimeoutError as error:
                raise _Closed from error

        # Its place is free for another page when it ends, not when it is collected.
        async with aclosing(self._events):
            with suppress(_Closed):
                await super().stream_response(send_soon)


class _Closed(Exception):
    """Nobody takes what is sent any more."""


def _pause(began: float) -> float:
    """Return how long to wait: a page that costs much is made anew the more rarely."""
    return max(LIVE_SECONDS, _RARER * (monotonic() - began))
