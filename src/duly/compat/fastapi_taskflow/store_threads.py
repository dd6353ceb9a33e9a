"""Threads of a manager's own, which wait for the store in place of the event loop."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from duly.limits import ADDING_THREADS

P = ParamSpec("P")
T = TypeVar("T")


class StoreThreads:
    """There from the start to the end of a manager: bodies may keep those of the loop busy."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Have threads, in this process."""
        self._pool = ThreadPoolExecutor(ADDING_THREADS, thread_name_prefix="duly-adding")

    def stop(self) -> None:
        """Take nothing more; what is under way goes on to its end."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Do something there; before the start, and behind the end, on a thread of the loop's."""
        within = contextvars.copy_context()
        call = partial(within.run, act, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
