"""Resources that each process opens for itself at their first use."""

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet


class Closable(Protocol):
    """A resource that can be closed."""

    def close(self) -> None: ...


T = TypeVar("T", bound=Closable)

_inherited: list[Closable] = []
"""Resources that were opened before a fork. They are never used or closed, which would affect the
locks of the parent."""


_all: "WeakSet[PerProcess[Any]]" = WeakSet()


class PerProcess(Generic[T]):
    """Opens a resource once per process. A forked child opens its own."""

    def __init__(self, opening: Callable[[], T]) -> None:
        self._open = opening
        self._opened: T | None = None
        self._kept: T | None = None
        self._pid = os.getpid()
        self._turn = threading.Lock()
        _all.add(self)

    def get(self) -> T:
        """Return the resource of this process, and open it at the first call."""
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
        """The open resource, of this process or of the process that it was forked from."""
        return self._opened

    @property
    def is_open(self) -> bool:
        """Whether this process has opened the resource."""
        return self._opened is not None and self._pid == os.getpid()

    def keep(self) -> None:
        """Keep the resource open until this process ends."""
        self._kept = self.get()

    def close(self) -> None:
        """Close the resource unless `keep` was called. The next use opens it again."""
        opened, self._opened = self._opened, None
        if opened is None or opened is self._kept:
            return
        if self._pid == os.getpid():
            opened.close()
        else:
            _inherited.append(opened)


def _reset_after_fork() -> None:
    """Replace locks that another thread may have held when this process was forked."""
    for each in tuple(_all):
        each._turn = threading.Lock()  # noqa: SLF001 - our own


os.register_at_fork(after_in_child=_reset_after_fork)
