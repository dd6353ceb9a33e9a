"""Steps that run concurrently in one body, on its event loop or in other threads."""

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from functools import wraps
from typing import Any, TypeVar, cast

from duly.context import RunContext, current
from duly.errors import NoCurrentRun
from duly.interrupts import is_interruptible
from duly.open_steps import OpenStep
from duly.store.task_connection import BODY

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

_enclosing_steps: ContextVar[tuple[OpenStep, ...]] = ContextVar("duly_steps_around", default=())
"""The steps that contain the code that is running."""


def must_be_awaited(function: F) -> F:
    """Note the calls of a coroutine function, since a call without `await` fails its attempt."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:  # noqa: ANN401 - of the function
        steps = current().open_steps
        coroutine: Any = function(*args, **kwargs)
        about = repr(args[0]) if args and isinstance(args[0], str) else "…"
        steps.note_call(f"{function.__name__}({about})", coroutine)
        return coroutine  # type: ignore[no-any-return]  # it is what the function returned

    _mark_as_coroutine_function(call)
    return cast("F", call)


def _mark_as_coroutine_function(function: Callable[..., Any]) -> None:
    """Let mocks and frameworks see that a call of the function must be awaited."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        mark = asyncio.coroutines._is_coroutine  # type: ignore[attr-defined]  # noqa: SLF001 - nothing public has it
        function._is_coroutine = mark  # type: ignore[attr-defined]  # noqa: SLF001 - as above


@contextmanager
def open_task_step(context: RunContext, name: str) -> Iterator[None]:
    """Register an open step of a coroutine, so that other waits and the end of the body see it.

    No step starts once the body is about to be left.
    """
    if context.leaving_error is not None:
        raise context.leaving_error
    with _opened(context, name, asyncio.current_task()):
        yield


def open_thread_step(context: RunContext, name: str) -> AbstractContextManager[None]:
    """Register an open step of a thread; see `open_task_step`.

    A step in the body's own thread needs no record: it has ended when the body has. That thread
    could also be interrupted between the start of the step and the code that records its end.
    """
    return nullcontext() if is_interruptible() else _opened(context, name, None)


@contextmanager
def _opened(context: RunContext, name: str, task: "asyncio.Task[Any] | None") -> Iterator[None]:
    around, step, steps = _enclosing_steps.get(), OpenStep(name, task), context.open_steps
    steps.add(step)
    # Checked after adding the step. The code that ends the body checks in the opposite order, so
    # one of the two always sees the other.
    if context.has_ended and not steps.has_any(around):
        steps.remove(step)
        raise NoCurrentRun(
            f"step {name!r} would start after its task returned: wait in the task for all asyncio "
            "tasks and threads that it starts"
        )
    token = _enclosing_steps.set((*around, step))
    try:
        yield
    finally:
        steps.remove(step)
        with suppress(ValueError):  # Its context was replaced: the coroutine is being removed.
            _enclosing_steps.reset(token)


async def wait_for_open_steps(context: RunContext) -> None:
    """Wait until concurrent steps have ended, before the body is left and its claim is released.

    The steps around this place are about to be left too, so they are not waited for.
    """
    steps = context.open_steps
    steps.leave(_enclosing_steps.get())
    while (ended := steps.next_end(of_left=False)) is not None:
        await ended


async def run_isolated(act: Callable[[], R]) -> R:
    """Run a function on a thread, separately from the rest of the body on its event loop."""

    def alone() -> R:
        BODY.set(object())
        return act()

    return await run_to_completion(alone)


async def run_to_completion(act: Callable[[], R]) -> R:
    """Run a function on a thread to its end, even if the caller is cancelled meanwhile.

    A claim is released only when all of its body has ended, and a thread cannot be cancelled.
    """
    # Not an asyncio task, since code that ends the event loop cancels all of those.
    work = asyncio.get_running_loop().run_in_executor(None, copy_context().run, act)
    is_cancelled = False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        work.exception()
        raise asyncio.CancelledError
    return work.result()


async def run_off_loop(context: RunContext, act: Callable[[], R]) -> R:
    """Run a function that may block.

    Inside a transaction, run it on the transaction's own thread.
    """
    if context.joined(context.store) is not None:
        return act()
    return await run_to_completion(act)
