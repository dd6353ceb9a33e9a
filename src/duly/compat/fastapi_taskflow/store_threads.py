"""Threads of a manager that wait for the store, so that the event loop need not."""

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
    """Threads that exist until the manager stops. Tasks may keep the loop's own threads busy."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None

    def start(self) -> None:
        """Create the threads in this process."""
        self._pool = ThreadPoolExecutor(ADDING_THREADS, thread_name_prefix="duly-adding")

    def stop(self) -> None:
        """Accept no more calls. Running calls continue to their end."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)

    async def run(self, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call on a thread. If the manager is not running, use one of the loop's threads."""
        within = contextvars.copy_context()
        call = partial(within.run, act, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)
