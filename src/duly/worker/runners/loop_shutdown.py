"""Sees the end of an event loop that is not ours."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any


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
        self._task = self.loop.create_task(_EndlessWait(self.loop), name="duly-loop-shutdown")

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()


class _EndlessWait(Coroutine[Any, Any, None]):
    """Waits until it is cancelled.

    A loop may be closed before the first step of its tasks. Python warns of an `async def` function
    that was called and never begun, and not of this.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._steps = loop.create_future().__await__()

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as asyncio calls it
        """Begin to wait."""
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as asyncio calls it
        """End with an exception: the cancel."""
        return self._steps.throw(*error)

    def close(self) -> None:
        """Forget the wait."""
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Raise NotImplementedError. Only asyncio runs this object, through `send` and `throw`."""
        raise NotImplementedError
