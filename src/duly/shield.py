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


class Shield:
    """Keeps exceptions from outside away from one thread for the length of a `with` block."""

    __slots__ = ("_depth", "lock", "thrown", "was_struck")

    def __init__(self) -> None:
        self.thrown: type[BaseException] | None = None
        """What was thrown last."""
        self.was_struck = False
        self.lock = threading.RLock()
        """Nothing is thrown while the body's thread holds it."""
        self._depth = 0

    def __enter__(self) -> None:
        try:
            self.lock.acquire()
            if self.was_struck and self._depth == 0:
                # The exception may have been thrown while this thread waited for the lock.
                let_strike()
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

    def strike(self, throw: Callable[[], None]) -> bool:
        """Throw an exception into the thread; return False if the thread shields itself."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            self.was_struck = True
            throw()
        finally:
            self.lock.release()
        return True


_shields: dict[int, Shield] = {}
"""By the thread: the shields of threads that may be struck."""
_NOBODY_STRIKES = nullcontext()


def shielded() -> AbstractContextManager[Any]:
    """Return what keeps strikes away from this thread for the length of a block."""
    return _shields.get(threading.get_ident(), _NOBODY_STRIKES)


def expose() -> Shield:
    """Let this thread be struck through the shield that this returns."""
    shield = Shield()
    _shields[threading.get_ident()] = shield
    return shield


def is_exposed() -> bool:
    """Return whether this thread may be struck."""
    return threading.get_ident() in _shields


def cover() -> None:
    """Let this thread be struck no longer."""
    _shields.pop(threading.get_ident(), None)


def thrown_here() -> type[BaseException] | None:
    """Return what was thrown into this thread last; a callback of C code may swallow it."""
    shield = _shields.get(threading.get_ident())
    return None if shield is None else shield.thrown


def let_strike() -> None:
    """Let an exception that was thrown into this thread be raised here."""
    for _ in range(_CALLS_UNTIL_RAISED):
        time.sleep(0)


_CALLS_UNTIL_RAISED = 10
"""The interpreter raises a thrown exception when a call returns, at the latest after a few."""
