"""Sees the end of an event loop that is not ours."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


class LoopShutdownMonitor:
    """A task on the loop that waits for nothing: whoever cancels it is ending the whole loop.

    `asyncio.run` and the like cancel all tasks before any of them goes on, so a body that is
    cancelled can tell the end of its loop from a cancel that was meant for it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """Look out on a loop; `ended` is to be told of its end, and may be told again."""
        self.loop = loop
        self.ended = ended
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Put the task on the loop."""
        with suppress(RuntimeError):  # It is closed already, and that is seen.
            self.loop.call_soon_threadsafe(self._begin)

    def is_shutting_down(self) -> bool:
        """Say whether the loop is about to end, or has."""
        return self.loop.is_closed() or (self._task is not None and self._task.cancelling() > 0)

    def end(self) -> None:
        """Take the task from the loop; what is seen from here on means nothing."""
        with suppress(RuntimeError):  # It is closed.
            self.loop.call_soon_threadsafe(self._end)

    def _begin(self) -> None:
        self._task = self.loop.create_task(self._wait(), name="duly-loop-shutdown")

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _wait(self) -> None:
        await self.loop.create_future()
