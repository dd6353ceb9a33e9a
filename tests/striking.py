"""Exceptions thrown into a thread from outside, as the time limits of other engines are."""

import ctypes
import dis
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from types import CodeType, FrameType
from typing import Any

# By its name, since what is declared of the attribute holds for all others in this process too.
_throw = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_throw.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Struck(BaseException):
    """What is thrown."""


class Striker:
    """Throws into a thread once, some time after it is told to.

    One thread of its own throws, since starting one per throw takes longer than what is struck.
    """

    def __init__(self) -> None:
        self._told = threading.Event()
        self._thrown = threading.Event()
        self._target = 0
        self._seconds = 0.0
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def call(self, act: Callable[[], object], seconds: float) -> bool:
        """Do something in this thread, struck after so long; say whether it was struck in time.

        The throw is over when this returns: it strikes nothing that comes later. An error of what
        is done is let out only if nothing has struck.
        """
        is_over = False
        try:
            self._target, self._seconds = threading.get_ident(), seconds
            self._thrown.clear()
            self._told.set()
            try:
                act()
                is_over = True
            finally:
                _wait_for(self._thrown)
        except Struck:
            return not is_over
        return False

    def close(self) -> None:
        """End the thread."""
        self._is_over = True
        self._told.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._told.wait()
            self._told.clear()
            if self._is_over:
                return
            until = time.perf_counter() + self._seconds
            while time.perf_counter() < until:
                time.sleep(0)
            _throw(self._target, Struck)
            self._thrown.set()


def _wait_for(event: threading.Event) -> None:
    while not event.wait(0.01):
        pass
    for _ in range(3):
        time.sleep(0)  # Here at the latest it strikes.


@contextmanager
def striker() -> Iterator[Striker]:
    """Give one that is closed in the end."""
    found = Striker()
    try:
        yield found
    finally:
        found.close()


class Strike:
    """Throws at the n-th instruction of some files at which the interpreter looks for exceptions.

    That is where a function begins, where a call has returned and where a loop turns; nowhere else
    does an exception from outside strike. So a test that goes through all of them misses none.
    """

    def __init__(self, number: int, *files: str, error: type[BaseException] = Struck) -> None:
        self._left = number
        self._files = files
        self._error = error
        self.has_struck = False

    def call(self, act: Callable[[], object]) -> None:
        """Do something in this thread, and be struck there."""
        sys.settrace(self._enter)
        try:
            act()
        except self._error:
            pass
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, _event: str, _what: object) -> Any:
        if not frame.f_code.co_filename.endswith(self._files) or self.has_struck:
            return None
        frame.f_trace_opcodes = True
        self._come_by()
        return self._look

    def _look(self, frame: FrameType, event: str, _what: object) -> Any:
        if event == "opcode" and not self.has_struck and frame.f_lasti in _looks(frame.f_code):
            self._come_by()
        return self._look

    def _come_by(self) -> None:
        self._left -= 1
        if self._left < 0:
            self.has_struck = True
            raise self._error


@cache
def _looks(code: CodeType) -> frozenset[int]:
    """Return before which instructions, but the first, the interpreter looks for exceptions."""
    found = set()
    before = ""
    for instruction in dis.get_instructions(code):
        if before.startswith("CALL") or instruction.opname == "JUMP_BACKWARD":
            found.add(instruction.offset)
        before = instruction.opname
    return frozenset(found)
