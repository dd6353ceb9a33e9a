"""The process at the other end of a tether: run as a file, so that it imports nothing of duly.

It reads from its keeper until when it may live. When that is over, or its keeper has ended, it
closes its end of the pipe to which the keeper's children are tied: the kernel then kills them, and
this process kills what they started elsewhere. If it is stopped by then, the kernel kills it, which
closes the pipe as well.
"""

import ctypes
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

DEADLINE_MESSAGE = struct.Struct("=d")
"""Until when to live, by the clock below."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""As `duly.clock.monotonic`."""
_TIMER_ABSTIME = 1
_SIGEV_SIGNAL = 0
_NANOSECONDS = 1_000_000_000
_EARLY_SECONDS = 0.05
"""How long before the kernel would kill it a process that is not stopped does the same itself."""


class _SigEvent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class KillTimer:
    """A timer of the kernel's that kills this process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "timer_create"):  # before glibc 2.34
            self._libc = ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _SigEvent(None, signal.SIGKILL, _SIGEV_SIGNAL)
        self._check(self._libc.timer_create(CLOCK, ctypes.byref(event), ctypes.byref(self._timer)))

    def set(self, at: float) -> None:
        """Expire then, and no sooner."""
        seconds, nanoseconds = divmod(round(at * _NANOSECONDS), _NANOSECONDS)
        setting = _TimerSpec(_TimeSpec(0, 0), _TimeSpec(seconds, nanoseconds))
        self._check(
            self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(setting), None)
        )

    def stop(self) -> None:
        """Expire never."""
        self.set(0.0)

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def kill_marked(name: str) -> None:
    """Kill every other process that has this name in its environment, wherever it runs.

    A process that leaves its group, its session or its parent keeps its environment. Where the
    system does not show environments, none is found.
    """
    killed: set[int] = set()
    # A process may have started another one just before it was killed.
    while found := set(_marked(name.encode())) - killed:
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found


def _marked(name: bytes) -> Iterator[int]:
    own = os.getpid()
    # There may be none; or the system can open no more files, and nothing can be found.
    with suppress(OSError):
        for entry in os.listdir("/proc"):  # noqa: PTH208 - pathlib is not loaded here
            # It may be another user's, or be gone.
            with suppress(OSError):
                if entry.isdecimal() and int(entry) != own and name in _environment(entry):
                    yield int(entry)


def _environment(pid: str) -> bytes:
    with open(f"/proc/{pid}/environ", "rb") as environment:  # noqa: PTH123 - as above
        return environment.read()


def main() -> None:
    """Live as long as the keeper says; end with it, and end what belongs to it."""
    held, tree = int(sys.argv[1]), sys.argv[2]
    # Who stops a whole service signals all of its processes; only the keeper's end is ours.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    timer = KillTimer()
    until = None
    while words := _read_deadlines(until):
        (until,) = DEADLINE_MESSAGE.unpack(words[-DEADLINE_MESSAGE.size :])
        timer.set(until)
    # The kernel kills the children and their groups when this is closed.
    os.close(held)
    timer.stop()
    kill_marked(tree)


def _read_deadlines(until: float | None) -> bytes:
    """Return what the keeper says; nothing if it has ended, or says nothing for too long."""
    left = None if until is None else until - _EARLY_SECONDS - time.clock_gettime(CLOCK)
    if left is not None and not select.select([sys.stdin], [], [], max(0.0, left))[0]:
        return b""
    return os.read(sys.stdin.fileno(), 64 * DEADLINE_MESSAGE.size)


if __name__ == "__main__":
    main()
