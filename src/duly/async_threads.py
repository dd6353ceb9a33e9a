"""Runs a function in a thread for a coroutine, to its end even if the coroutine is cancelled."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from duly.errors import DulyError
from duly.store.task_connection import BODY

T = TypeVar("T")


async def run_in_thread(act: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Call `act` in a thread of its own, which continues even if this coroutine is cancelled.

    If the coroutine is cancelled or interrupted meanwhile, the thread calls `undo` with what `act`
    returned. The event loop's own threads are not used, because they may all be busy or end with
    the loop.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    mutex = threading.Lock()
    done: list[T] = []
    failed: list[BaseException] = []
    abandoned = False
    body = BODY.get()

    def work() -> None:
        BODY.set(body)
        try:
            result = act()
        except BaseException as error:  # noqa: BLE001 - raised by the coroutine, which waits for it
            failed.append(error)
            tell_end()
            return
        with mutex:
            is_awaited = not abandoned
            if is_awaited:
                done.append(result)
        if is_awaited:
            tell_end()
        else:
            take_back(result)

    def take_back(result: T) -> None:
        # No caller is left to receive an error. If this fails, the result expires in time.
        with suppress(DulyError, OSError):
            if undo is not None:
                undo(result)

    def tell_end() -> None:
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(ended.set_result, None)

    threading.Thread(target=work, name="duly-async-thread", daemon=True).start()
    try:
        await asyncio.shield(ended)
        if failed:
            raise failed.pop()  # noqa: TRY301 - nothing is done, so nothing is undone
        return done[0]
    except BaseException:
        with mutex:
            abandoned = True
            left = tuple(done)
        if left:
            threading.Thread(
                target=take_back, args=left, name="duly-async-thread", daemon=True
            ).start()
        raise
