"""Celery tasks that are coroutine functions. Celery awaits nothing, so each gets an event loop."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine, Generator
from contextlib import closing
from contextvars import ContextVar, copy_context
from typing import Any

from celery import exceptions

from duly.errors import DulyError

_result_list: ContextVar[list[Any] | None] = ContextVar("duly_celery_returning", default=None)
"""The list that the next coroutine task appends its result to before its loop closes."""


class LoopIsRunning(DulyError, RuntimeError):
    """A coroutine task was called in a thread whose event loop it would block."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"{task} is a coroutine function, and running it here would block the running event "
            "loop; run it in another thread, for example with asyncio.to_thread(task.apply, …), "
            "or in a worker"
        )
        self.task = task


def run_with_result_list(returned: list[Any], body: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the body
    """Run a coroutine task, which appends its result to `returned`.

    The task runs in its own context. A time limit may be raised at any instruction, so a reset of
    the variable could be skipped, and the next task would then use the wrong list.
    """

    def run() -> Any:  # noqa: ANN401 - as the body
        _result_list.set(returned)
        return body()

    return copy_context().run(run)


def check_no_loop(task: str) -> None:
    """Raise LoopIsRunning if this thread already runs an event loop."""
    if is_loop_running():
        raise LoopIsRunning(task)


def is_loop_running() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def loop_runner_for(run: Any) -> Any:  # noqa: ANN401 - a function, or a static method of its task
    """Return a function that runs a coroutine function to its end, or None for other functions."""
    is_static = isinstance(run, staticmethod)
    function: Callable[..., Any] = run.__func__ if is_static else run
    if not inspect.iscoroutinefunction(function):
        return None

    @functools.wraps(function)
    def carry_out(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        returned = _result_list.get()
        if returned is None and is_loop_running():
            # Another coroutine awaits this call, as in `await super().run(…)`.
            return function(*args, **kwargs)
        check_no_loop(function.__qualname__)
        returned = [] if returned is None else returned

        async def keep() -> None:
            _result_list.set(None)  # Coroutine tasks called from here must not use the list.
            try:
                # No time limit can be raised between the end of the awaited call and this append.
                returned.append(await function(*args, **kwargs))
            except SoftTimeLimitExceeded as limit:
                raise limit.original.with_traceback(limit.__traceback__) from None

        _run(_TimeLimitedCoroutine(keep))
        return returned[0]

    return staticmethod(carry_out) if is_static else carry_out


class SoftTimeLimitExceeded(exceptions.SoftTimeLimitExceeded, asyncio.CancelledError):
    """A soft time limit as it is raised inside a coroutine.

    It is also a cancellation, so a task group that is waiting cancels all of its tasks.
    """

    original: exceptions.SoftTimeLimitExceeded


class _TimeLimitedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine that receives, in its loop, a time limit raised elsewhere in its thread."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin
        # Created at the first `send`. Before that there is nothing to close.
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[Any] | None = None
        """Set at the first `send`."""
        self._limit: SoftTimeLimitExceeded | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def throw_limit(self, struck: exceptions.SoftTimeLimitExceeded) -> None:
        """Raise the limit in the coroutine as soon as its current wait has been cancelled."""
        if self._task is not None and not self._task.done():
            self._limit = SoftTimeLimitExceeded(*struck.args)
            self._limit.original = struck
            self._task.cancel()

    def handle_loop_exception(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        """Pass on a limit that was raised in a callback of the loop. The loop would only log it."""
        error = context.get("exception")
        if isinstance(error, exceptions.SoftTimeLimitExceeded) and self.is_running:
            self.throw_limit(error)
        else:
            loop.default_exception_handler(context)

    async def join(self) -> None:
        """Wait until the coroutine has ended."""
        if self._task is not None:
            await self._task

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as asyncio calls it
        """Resume the coroutine."""
        if self._limit is not None:
            return self.throw(self._limit)
        if self._coroutine is None:
            self._task, self._coroutine = asyncio.current_task(), self._begin()
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as asyncio calls it
        """Resume the coroutine with an exception."""
        if self._limit is not None and self._task is not None:
            error, self._limit = (self._limit,), None
            # Code that catches the limit is not cancelled and may await again.
            self._task.uncancel()
        if self._coroutine is None:
            raise error[0]
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """Close the coroutine."""
        if self._coroutine is not None:
            self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Raise NotImplementedError. Only asyncio runs this object, through `send` and `throw`."""
        raise NotImplementedError


def _run(body: _TimeLimitedCoroutine) -> None:
    """Run a coroutine on its own event loop."""
    with closing(body), asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(body.handle_loop_exception)
        rest: Coroutine[Any, Any, None] | None = body
        while rest is not None:
            try:
                runner.run(rest)
                # Do not return here: a limit may still be raised after the call but inside `try`.
                rest = None
            except exceptions.SoftTimeLimitExceeded as limit:
                if not body.is_running:
                    raise
                body.throw_limit(limit)
                rest = body.join()
