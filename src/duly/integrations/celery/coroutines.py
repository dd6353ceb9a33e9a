"""Celery tasks that are coroutine functions: Celery awaits nothing, so each has its own loop."""

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
"""Where the body that is about to begin puts its result, before its loop ends."""


class LoopIsRunning(DulyError, RuntimeError):
    """A coroutine task was to be run on the spot by a thread whose event loop would stand still."""

    def __init__(self, task: str) -> None:
        super().__init__(
            f"{task} is a coroutine function, and running it here would block the running event "
            "loop; run it in another thread, for example with asyncio.to_thread(task.apply, …), "
            "or in a worker"
        )
        self.task = task


def run_with_result_list(returned: list[Any], body: Callable[[], Any]) -> Any:  # noqa: ANN401 - as the body
    """Run a coroutine task's body, which appends its result to `returned`.

    The body runs in a context of its own. A time limit may strike at any instruction, and no reset
    that it could skip must keep the next task from its own list.
    """

    def run() -> Any:  # noqa: ANN401 - as the body
        _result_list.set(returned)
        return body()

    return copy_context().run(run)


def check_no_loop(task: str) -> None:
    """Refuse to run a coroutine task where a loop runs already."""
    if is_loop_running():
        raise LoopIsRunning(task)


def is_loop_running() -> bool:
    """Say whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def loop_runner_for(run: Any) -> Any:  # noqa: ANN401 - a function, or a static method of its task
    """Return what carries a coroutine function out to its end; None if it is none."""
    is_static = isinstance(run, staticmethod)
    function: Callable[..., Any] = run.__func__ if is_static else run
    if not inspect.iscoroutinefunction(function):
        return None

    @functools.wraps(function)
    def carry_out(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as the function
        returned = _result_list.get()
        if returned is None and is_loop_running():
            return function(*args, **kwargs)  # To another coroutine, as by `await super().run(…)`.
        check_no_loop(function.__qualname__)
        returned = [] if returned is None else returned

        async def keep() -> None:
            _result_list.set(
                None
            )  # Of what this calls in turn nobody takes the result for its own.
            try:
                # Nothing strikes between the end of what is awaited and the end of this call.
                returned.append(await function(*args, **kwargs))
            except SoftTimeLimitExceeded as limit:
                raise limit.original.with_traceback(limit.__traceback__) from None

        _run(_TimeLimitedCoroutine(keep))
        return returned[0]

    return staticmethod(carry_out) if is_static else carry_out


class SoftTimeLimitExceeded(exceptions.SoftTimeLimitExceeded, asyncio.CancelledError):
    """A limit as a coroutine is told of it.

    It is a cancellation, too: what waits for others, such as a task group, passes it on to them and
    leaves none behind.
    """

    original: exceptions.SoftTimeLimitExceeded


class _TimeLimitedCoroutine(Coroutine[Any, Any, None]):
    """A coroutine that is told of a limit which struck its thread outside of it, in its loop."""

    def __init__(self, begin: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._begin = begin
        # Made when it begins: until then nobody has to close it.
        self._coroutine: Coroutine[Any, Any, None] | None = None
        self._task: asyncio.Task[Any] | None = None
        """Once it has begun."""
        self._limit: SoftTimeLimitExceeded | None = None

    @property
    def is_running(self) -> bool:
        return self._task is not None and not self._task.done()

    def throw_limit(self, struck: exceptions.SoftTimeLimitExceeded) -> None:
        """Throw a limit into it as soon as what it waits for has been cancelled."""
        if self._task is not None and not self._task.done():
            self._limit = SoftTimeLimitExceeded(*struck.args)
            self._limit.original = struck
            self._task.cancel()

    def handle_loop_exception(
        self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]
    ) -> None:
        """Tell of a limit that struck in a callback of the loop, where nobody else would."""
        error = context.get("exception")
        if isinstance(error, exceptions.SoftTimeLimitExceeded) and self.is_running:
            self.throw_limit(error)
        else:
            loop.default_exception_handler(context)

    async def join(self) -> None:
        """Wait for its end."""
        if self._task is not None:
            await self._task

    def send(self, value: Any) -> Any:  # noqa: ANN401 - as asyncio calls it
        """Go on."""
        if self._limit is not None:
            return self.throw(self._limit)
        if self._coroutine is None:
            self._task, self._coroutine = asyncio.current_task(), self._begin()
        return self._coroutine.send(value)

    def throw(self, *error: Any) -> Any:  # noqa: ANN401 - as asyncio calls it
        """Go on with an exception."""
        if self._limit is not None and self._task is not None:
            error, self._limit = (self._limit,), None
            self._task.uncancel()  # Whoever catches a limit is not cancelled, and may wait again.
        if self._coroutine is None:
            raise error[0]
        return self._coroutine.throw(*error)

    def close(self) -> None:
        """End."""
        if self._coroutine is not None:
            self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, None]:
        """Refuse: only a task runs this, and tasks of asyncio's call `send` and `throw`."""
        raise NotImplementedError


def _run(body: _TimeLimitedCoroutine) -> None:
    """Run a body on a loop of its own."""
    with closing(body), asyncio.Runner() as runner:
        runner.get_loop().set_exception_handler(body.handle_loop_exception)
        rest: Coroutine[Any, Any, None] | None = body
        while rest is not None:
            try:
                runner.run(rest)
                # Not returned from here: a limit may strike behind the call, still inside.
                rest = None
            except exceptions.SoftTimeLimitExceeded as limit:
                if not body.is_running:
                    raise
                body.throw_limit(limit)
                rest = body.join()
