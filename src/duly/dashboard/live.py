"""Keeps a page up to date: the page's own address, asked for as a stream of events."""

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from duly.limits import LIVE_SECONDS, LIVE_STREAMS

_TIMES = re.compile(r"<time\b([^>]*)>[^<]*</time>")
"""How long ago something was changes all the time, and is counted on by the page itself."""
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
        return StreamingResponse(self._events(request, render), media_type="text/event-stream")

    async def _events(
        self, request: Request, render: Callable[[], Awaitable[str]]
    ) -> AsyncIterator[str]:
        self._open += 1
        seen = b""
        quiet = 0
        try:
            while not await request.is_disconnected():
                text = await render()
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
                await asyncio.sleep(LIVE_SECONDS)
        finally:
            self._open -= 1
