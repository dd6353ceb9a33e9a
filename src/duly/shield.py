"""Keeps exceptions from outside, such as a timeout, out of code that must not be left half done.

A body's thread is struck at any of its instructions. Were that inside the store, a lock might stay
held for ever. So whoever strikes takes the thread's own lock first, and code that must not be
struck holds it meanwhile: the exception then comes before, or when it is tried again.
"""

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

_locks: dict[int, AbstractContextManager[Any]] = {}
"""By the thread: a lock of those that may be struck. One made by the interpreter itself, so that
nothing strikes between taking it and entering the block that gives it back."""
_NOBODY_STRIKES = nullcontext()


def shielded() -> AbstractContextManager[Any]:
    """Return what keeps strikes away from this thread for the length of a block."""
    return _locks.get(threading.get_ident(), _NOBODY_STRIKES)


def expose() -> Any:  # noqa: ANN401 - the type of such locks has no name
    """Let this thread be struck by who holds the lock that this returns."""
    lock = threading.RLock()
    _locks[threading.get_ident()] = lock
    return lock


def is_exposed() -> bool:
    """Say whether this thread may be struck."""
    return threading.get_ident() in _locks


def cover() -> None:
    """Let this thread be struck no longer."""
    _locks.pop(threading.get_ident(), None)
