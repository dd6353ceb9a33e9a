"""Limits the open requests of one viewer, so that other viewers are served."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from duly.limits import READ_WAIT_SECONDS, READS_OF_ONE

T = TypeVar("T")
RETRY_SOON = {"Retry-After": "5"}


class TooManyReads(Exception):
    """A viewer has sent more concurrent requests than are read for one viewer."""

    def __init__(self) -> None:
        super().__init__(
            f"You have too many requests open: at most {READS_OF_ONE} are read at the same time. "
            "Wait for their answers, then try again."
        )


class ViewerLimit:
    """Counts the open requests of each viewer, and lets a viewer wait for room."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.open: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def has_room(self, viewer: str) -> bool:
        """Return whether a viewer may open another request."""
        return self.open[viewer] < self._most

    @contextmanager
    def counted(self, viewer: str) -> Iterator[None]:
        """Count one request as open during a block."""
        self.open[viewer] += 1
        try:
            yield
        finally:
            self._close(viewer)

    @asynccontextmanager
    async def awaited(self, viewer: str, seconds: float | None) -> AsyncIterator[None]:
        """Wait for room, then count one request as open during a block.

        Waiting requests get room in the order of their arrival. Raise TimeoutError after this many
        seconds without room.
        """
        if self.has_room(viewer):
            self.open[viewer] += 1
        else:
            await self._room(viewer, seconds)
        try:
            yield
        finally:
            self._close(viewer)

    async def _room(self, viewer: str, seconds: float | None) -> None:
        room = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(viewer, deque())
        waiting.append(room)
        try:
            async with asyncio.timeout(seconds):
                await room
        except BaseException:
            if room.done() and not room.cancelled():
                self._close(viewer)  # Room was given at the moment when the waiting ended.
            else:
                with suppress(ValueError):
                    waiting.remove(room)
            raise

    def _close(self, viewer: str) -> None:
        waiting = self._waiting.get(viewer)
        while waiting:
            room = waiting.popleft()
            if not room.done():
                # The count stays the same: the waiting request has the room now.
                room.set_result(None)
                return
        self.open[viewer] -= 1
        if not self.open[viewer]:
            del self.open[viewer]
            self._waiting.pop(viewer, None)


class Reads:
    """Runs database reads of requests on threads, a few per viewer at a time.

    There are few threads, and all viewers share them.
    """

    def __init__(self) -> None:
        self._limits: WeakKeyDictionary[asyncio.AbstractEventLoop, ViewerLimit] = (
            WeakKeyDictionary()
        )
        """One limit per event loop that serves pages: a loop cannot wake the waiters of another."""

    async def run(self, request: Request, read: Callable[[], T]) -> T:
        """Return the result of a read. Raise TooManyReads if the viewer waited too long."""
        async with AsyncExitStack() as stack:
            room = self._limit().awaited(request.state.rate_limit_identity, READ_WAIT_SECONDS)
            try:
                await stack.enter_async_context(room)
            except TimeoutError:
                raise TooManyReads from None
            return await run_in_threadpool(read)

    async def run_when_free(self, request: Request, read: Callable[[], T]) -> T:
        """Return the result of a read, however long the viewer must wait.

        This is for a response that has started.
        """
        async with self._limit().awaited(request.state.rate_limit_identity, None):
            return await run_in_threadpool(read)

    def _limit(self) -> ViewerLimit:
        loop = asyncio.get_running_loop()
        limit = self._limits.get(loop)
        if limit is None:
            # Only the thread of this loop reaches this line.
            limit = self._limits[loop] = ViewerLimit(READS_OF_ONE)
        return limit
