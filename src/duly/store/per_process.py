"""What is opened when it is first needed, by each process its own."""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet


class Closable(Protocol):
    """What can be closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

_inherited: list[Closable] = []
"""What was opened before a fork: kept, never used or closed, lest its locks be touched."""


_all: "WeakSet[PerProcess[Any]]" = WeakSet()


class PerProcess(Generic[T]):
    """Opens something once per process; a forked child opens its own."""

    def __init__(self, opening: Callable[[], T]) -> None:
        self._open = opening
        self._opened: T | None = None
        self._kept: T | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        _all.add(self)

    def get(self) -> T:
        """Return what this process has opened."""
        if self._opened is not None and self._pid == os.getpid():
            return self._opened
        with self._turn:
            if self._opened is not None and self._pid != os.getpid():
                _inherited.append(self._opened)
                self._opened = None
            if self._opened is None:
                self._opened = self._open()
                self._pid = os.getpid()
            return self._opened

    @property
    def opened(self) -> T | None:
        """What is open, in this process or in the one that it was forked from."""
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether this process has opened it."""
        return self._opened is not None and self._pid == os.getpid()

    def keep(self) -> None:
        """Leave what this process has opened open until this process ends."""
        self._kept = self.get()

    def close(self) -> None:
        """Close it, unless it is kept; the next use opens it again."""
        opened, self._opened = self._opened, None
        if opened is None or opened is self._kept:
            return
        if self._pid == os.getpid():
            opened.close()
        else:
            _inherited.append(opened)


def _reset_after_fork() -> None:
    """Free what some other thread held when this process was forked."""
    for each in tuple(_all):
        each._turn = threading.Lock()  # noqa: SLF001 - our own


os.register_at_fork(after_in_child=_reset_after_fork)
