"""Celery tasks that are coroutine functions: Celery awaits nothing, so each has its own loop."""

import asyncio
import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

returning: ContextVar[list[Any] | None] = ContextVar("duly_celery_returning", default=None)
"""Where the body that is about to begin puts its result, before its loop ends."""


def on_a_loop(run: Any) -> Any:  # noqa: ANN401 - a function, or a static method of its task
    """Return what carries a coroutine function out to its end; None if it is none."""
    is_static = isinstance(run, staticmethod)
    function: Callable[..., Any] = run.__func__ if is_static else run
    if not inspect.iscoroutinefunction(function):
        return None

    @functools.wraps(function)
    def carry_out(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        returned = returning.get()
        returned = [] if returned is None else returned

        async def keep() -> None:
            returning.set(None)  # Of what this calls in turn nobody takes the result for its own.
            # Nothing strikes between the end of what is awaited and the end of this call.
            returned.append(await function(*args, **kwargs))

        asyncio.run(keep())
        return returned[0]

    return staticmethod(carry_out) if is_static else carry_out
