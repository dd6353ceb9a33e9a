"""Exceptions thrown into a thread from outside, as the time limits of other engines are."""

import ctypes
import dis
import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from types import CodeType, FrameType
from typing import Any

# By its name, since what is declared of the attribute holds for all others in this process too.
_throw = ctypes.pythonapi["PyThreadState_SetAsyncExc"]
_throw.argtypes = (ctypes.c_ulong, ctypes.py_object)


class Struck(BaseException):
    """The exception that a test throws into another thread, at any instruction."""


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
    Which instructions these are differs between releases of Python. With `anywhere` every
    instruction counts, also those before which no release looks.
    """

    def __init__(
        self,
        number: int,
        *files: str,
        error: type[BaseException] = Struck,
        anywhere: bool = False,
    ) -> None:
        self._left = number
        self._files = files
        self._error = error
        self._anywhere = anywhere
        self.has_struck = False

    def call(self, act: Callable[[], object]) -> None:
        """Do something in this thread, and be struck there."""
        with suppress(self._error), _watching(self._files, self._come_by):
            act()

    def _come_by(self, code: CodeType, offset: int) -> None:
        if not self.has_struck and (self._anywhere or offset in _looks(code)):
            self._left -= 1
            if self._left < 0:
                self.has_struck = True
                raise self._error


Visit = Callable[[CodeType, int], None]
"""Is called before each instruction, with its offset."""


@contextmanager
def _tracing(files: tuple[str, ...], visit: Visit) -> Iterator[None]:
    """Call `visit` before each instruction of this thread in some files, up to Python 3.11."""

    def enter(frame: FrameType, _event: str, _what: object) -> Any:
        if not frame.f_code.co_filename.endswith(files):
            return None
        frame.f_trace_opcodes = True
        return look

    def look(frame: FrameType, event: str, _what: object) -> Any:
        if event == "opcode":
            visit(frame.f_code, frame.f_lasti)
        return look

    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(None)


@contextmanager
def _monitoring(files: tuple[str, ...], visit: Visit) -> Iterator[None]:
    """Do the same since Python 3.12.

    There, `settrace` reports instructions of a function only from its second call on.
    """
    thread = threading.get_ident()

    def look(code: CodeType, offset: int) -> None:
        if threading.get_ident() == thread:
            visit(code, offset)

    monitoring, tool = sys.monitoring, 4
    event = monitoring.events.INSTRUCTION
    monitoring.use_tool_id(tool, __name__)
    monitoring.register_callback(tool, event, look)
    found = _code_of(files)
    for code in found:
        monitoring.set_local_events(tool, code, event)
    try:
        yield
    finally:
        for code in found:
            monitoring.set_local_events(tool, code, 0)
        monitoring.register_callback(tool, event, None)
        monitoring.free_tool_id(tool)


_watching = _monitoring if sys.version_info >= (3, 12) else _tracing


@cache
def _code_of(files: tuple[str, ...]) -> tuple[CodeType, ...]:
    """Return the code of all functions that were defined in some files."""
    # By identity: equal code may be there twice, and events are those of an object.
    found: dict[int, CodeType] = {}
    for module in list(sys.modules.values()):
        if (getattr(module, "__file__", None) or "").endswith(files):
            left = [code for value in vars(module).values() for code in _code_in(value)]
            while left:
                code = left.pop()
                if code.co_filename.endswith(files):
                    found[id(code)] = code
                    left += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return tuple(found.values())


def _code_in(value: object) -> Iterator[CodeType]:
    for member in vars(value).values() if isinstance(value, type) else (value,):
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if callable(function):
            code = getattr(inspect.unwrap(function), "__code__", None)
            if isinstance(code, CodeType):
                yield code


@cache
def _looks(code: CodeType) -> frozenset[int]:
    """Return before which instructions the interpreter looks for exceptions."""
    found = set()
    before = ""
    for instruction in dis.get_instructions(code):
        if before == "RESUME" or before.startswith("CALL") or instruction.opname == "JUMP_BACKWARD":
            found.add(instruction.offset)
        before = instruction.opname
    return frozenset(found)
