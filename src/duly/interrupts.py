"""Keeps exceptions from outside, such as a timeout, out of code that must not be left half done.

A body's thread can be interrupted at any instruction. Inside the store, that could leave a lock
held for ever. So the thread that throws must hold the shield of the body's thread, and code that
must not be interrupted holds it too: the exception is then thrown later. An exception that was
thrown before such code took the shield is raised there, before the code begins. Neither depends on
the instructions at which Python raises such exceptions.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any


class InterruptMask:
    """Keeps exceptions from outside away from one thread for the length of a `with` block."""

    __slots__ = ("_depth", "lock", "thrown", "was_interrupted")

    def __init__(self) -> None:
        self.thrown: type[BaseException] | None = None
        """What was thrown last."""
        self.was_interrupted = False
        self.lock = threading.RLock()
        """Nothing is thrown while the body's thread holds it."""
        self._depth = 0

    def __enter__(self) -> None:
        try:
            self.lock.acquire()
            if self.was_interrupted and self._depth == 0:
                # The exception may have been thrown while this thread waited for the lock.
                raise_pending_interrupt()
            self._depth += 1
        except BaseException:
            if self._depth == 0:
                # If this thread does not hold the lock, it was struck before it got it.
                with suppress(RuntimeError):
                    self.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self.lock.release()

    def interrupt(self, throw: Callable[[], None]) -> bool:
        """Throw an exception into the thread; return False if the thread shields itself."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self.was_interrupted = True
            throw()
        finally:
            self.lock.release()
        return True


_masks: dict[int, InterruptMask] = {}
"""By the thread: the shields of threads that may be struck."""
_NO_MASK = nullcontext()


def defer_interrupts() -> AbstractContextManager[Any]:
    """Return what keeps strikes away from this thread for the length of a block."""
    return _masks.get(threading.get_ident(), _NO_MASK)


def allow_interrupts() -> InterruptMask:
    """Let this thread be struck through the shield that this returns."""
    shield = InterruptMask()
    _masks[threading.get_ident()] = shield
    return shield


def is_interruptible() -> bool:
    """Return whether this thread may be struck."""
    return threading.get_ident() in _masks


def disallow_interrupts() -> None:
    """Let this thread be struck no longer."""
    _masks.pop(threading.get_ident(), None)


def last_interrupt() -> type[BaseException] | None:
    """Return what was thrown into this thread last; a callback of C code may swallow it."""
    shield = _masks.get(threading.get_ident())
    return None if shield is None else shield.thrown


def raise_pending_interrupt() -> None:
    """Let an exception that was thrown into this thread be raised here."""
    for _ in range(_CALLS_UNTIL_RAISED):
        time.sleep(0)


_CALLS_UNTIL_RAISED = 10
"""The interpreter raises a thrown exception when a call returns, at the latest after a few."""
