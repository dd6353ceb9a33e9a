"""The steps beside which others of the same body run, on its loop or in other threads."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from duly.context import RunContext
from duly.errors import NoCurrentRun
from duly.interrupts import is_interruptible
from duly.open_steps import OpenStep
from duly.store.task_connection import BODY

R = TypeVar("R")

_enclosing_steps: ContextVar[tuple[OpenStep, ...]] = ContextVar("duly_steps_around", default=())
"""The steps in which the code that runs just now lies."""


@contextmanager
def open_task_step(context: RunContext, name: str) -> Iterator[None]:
    """Let who waits beside a step of a coroutine, or ends the body, know of it.

    None begins once the body is to be left.
    """
    if context.leaving_error is not None:
        raise context.leaving_error
    with _opened(context, name, asyncio.current_task()):
        yield


def open_thread_step(context: RunContext, name: str) -> AbstractContextManager[None]:
    """As `open_task_step`, for one of a thread.

    One in the body's own thread has ended when the body has. Whoever strikes that thread could
    strike between the step's beginning and the place that takes note of its end.
    """
    return nullcontext() if is_interruptible() else _opened(context, name, None)


@contextmanager
def _opened(context: RunContext, name: str, task: "asyncio.Task[Any] | None") -> Iterator[None]:
    around, step, steps = _enclosing_steps.get(), OpenStep(name, task), context.open_steps
    steps.add(step)
    # Looked at behind that, as who ends the body looks for steps behind saying so.
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
        with suppress(ValueError):  # It is no longer its context: the coroutine is being removed.
            _enclosing_steps.reset(token)


async def wait_for_open_steps(context: RunContext) -> None:
    """Let the steps beside this place end, before the body is left and the claim let go of.

    Those around it are about to be left too: nobody waits for them.
    """
    steps = context.open_steps
    steps.leave(_enclosing_steps.get())
    while (ended := steps.next_end(of_left=False)) is not None:
        await ended


async def run_isolated(act: Callable[[], R]) -> R:
    """Do on a thread what the rest of the body, on its loop, has no part in."""

    def alone() -> R:
        BODY.set(object())
        return act()

    return await run_to_completion(alone)


async def run_to_completion(act: Callable[[], R]) -> R:
    """Do something on a thread, to its end: who is cancelled meanwhile waits for that first.

    A claim is let go of only when all of its body has ended, and no thread can be broken off.
    """
    # No task: one would be cancelled, like all others, by whoever ends the loop.
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
    """Do what may have to wait; what joins a transaction is done by the thread that has it open."""
    if context.joined(context.store) is not None:
        return act()
    return await run_to_completion(act)
