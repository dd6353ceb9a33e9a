"""Keeps asynchronous exceptions, such as a timeout, out of code that must not be left half done.

A body's thread can be interrupted at any instruction. Inside the store, that could leave a lock
held forever. So a thread that interrupts must hold the mask of the body's thread. Code that must
not be interrupted holds the mask too, and the exception is thrown later. An exception that was
thrown before such code took the mask is raised there, before the code starts. Neither depends on
the instructions at which Python raises such exceptions.
"""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any


class InterruptMask:
    """Keeps asynchronous exceptions away from one thread for the length of a `with` block."""

    __slots__ = ("_depth", "lock", "thrown", "was_interrupted")

    def __init__(self) -> None:
        self.thrown: type[BaseException] | None = None
        """The exception that was thrown last."""
        self.was_interrupted = False
        self.lock = threading.RLock()
        """While the body's thread holds this, no exception is thrown into it."""
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
                # If this thread does not hold the lock, it was interrupted before it got the lock.
                with suppress(RuntimeError):
                    self.lock.release()
            raise

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        self.lock.release()

    def interrupt(self, throw: Callable[[], None]) -> bool:
        """Throw an exception into the thread. Return False if the thread masks interrupts."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self.was_interrupted = True
            throw()
        finally:
            self.lock.release()
        return True


_masks: dict[int, InterruptMask] = {}
"""The masks of the threads that may be interrupted, by thread id."""
_NO_MASK = nullcontext()


def defer_interrupts() -> AbstractContextManager[Any]:
    """Return a context manager that keeps interrupts away from this thread."""
    return _masks.get(threading.get_ident(), _NO_MASK)


def allow_interrupts() -> InterruptMask:
    """Allow interrupts of this thread, through the mask that this returns."""
    shield = InterruptMask()
    _masks[threading.get_ident()] = shield
    return shield


def is_interruptible() -> bool:
    """Return whether this thread may be interrupted."""
    return threading.get_ident() in _masks


def disallow_interrupts() -> None:
    """Stop allowing interrupts of this thread."""
    _masks.pop(threading.get_ident(), None)


def last_interrupt() -> type[BaseException] | None:
    """Return the last exception thrown into this thread. A callback of C code may swallow it."""
    shield = _masks.get(threading.get_ident())
    return None if shield is None else shield.thrown


def raise_pending_interrupt() -> None:
    """Give the interpreter the chance to raise an exception that was thrown into this thread."""
    for _ in range(_CALLS_UNTIL_RAISED):
        time.sleep(0)


_CALLS_UNTIL_RAISED = 10
"""The interpreter raises a thrown exception when a call returns, after a few calls at most."""
