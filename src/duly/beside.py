"""The steps of coroutines, beside which others of the same body run on the same loop."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from duly.context import RunContext
from duly.store.lent import BODY

R = TypeVar("R")

_around: ContextVar[tuple[asyncio.Future[None], ...]] = ContextVar("duly_steps_around", default=())
"""The ends of the steps of coroutines in which the code that runs just now lies."""


@contextmanager
def open_step(context: RunContext) -> Iterator[None]:
    """Let the waits beside a step know of it; none begins once the body is to be left."""
    if context.left_by is not None:
        raise context.left_by
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    context.open_steps.add(ended)
    token = _around.set((*_around.get(), ended))
    try:
        yield
    finally:
        _around.reset(token)
        _close(context, ended)


def _close(context: RunContext, ended: "asyncio.Future[None]") -> None:
    context.open_steps.discard(ended)
    if not ended.done():
        ended.set_result(None)


async def let_others_end(context: RunContext) -> None:
    """Let the steps beside this place end, before the body is left and the claim let go of.

    Those around it are about to be left too: nobody waits for them.
    """
    for ended in _around.get():
        _close(context, ended)
    while context.open_steps:
        await asyncio.wait(context.open_steps)


async def apart(act: Callable[[], R]) -> R:
    """Do on a thread what the rest of the body, on its loop, has no part in."""

    def alone() -> R:
        BODY.set(object())
        return act()

    return await _to_its_end(alone)


async def _to_its_end(act: Callable[[], R]) -> R:
    """Do something on a thread, to its end: who is cancelled meanwhile waits for that first.

    A claim is let go of only when all of its body has ended, and no thread can be broken off.
    """
    work, is_cancelled = asyncio.ensure_future(asyncio.to_thread(act)), False
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        work.exception()
        raise asyncio.CancelledError
    return work.result()


async def off_the_loop(context: RunContext, act: Callable[[], R]) -> R:
    """Do what may have to wait; what joins a transaction is done by the thread that has it open."""
    if context.joined(context.store) is not None:
        return act()
    return await _to_its_end(act)
