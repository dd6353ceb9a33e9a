"""What a coroutine does in a thread, to its end, whatever becomes of the coroutine."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from duly.errors import DulyError
from duly.store.task_connection import BODY

T = TypeVar("T")


async def run_in_thread(act: Callable[[], T], undo: Callable[[T], object] | None = None) -> T:
    """Do something in a thread of its own, to its end whatever becomes of us.

    If we are cancelled or struck meanwhile, what was done is undone there. The loop's own threads
    may all be busy, or end with it.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()
    mutex = threading.Lock()
    done: list[T] = []
    abandoned = False
    body = BODY.get()

    def work() -> None:
        BODY.set(body)
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - handed to who waits for it
            tell(answer.set_exception, error)
            return
        with mutex:
            is_awaited = not abandoned
            if is_awaited:
                done.append(result)
        if is_awaited:
            tell(answer.set_result, result)
        else:
            take_back(result)

    def take_back(result: T) -> None:
        # Nobody is left to be told; what cannot be undone now is over with its time.
        with suppress(DulyError, OSError):
            if undo is not None:
                undo(result)

    def tell(settle: Callable[[Any], None], news: object) -> None:
        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(settle, news)

    threading.Thread(target=work, name="duly-async-thread", daemon=True).start()
    try:
        return await asyncio.shield(answer)
    except BaseException:
        with mutex:
            abandoned = True
            left = tuple(done)
        if left:
            threading.Thread(
                target=take_back, args=left, name="duly-async-thread", daemon=True
            ).start()
        raise
