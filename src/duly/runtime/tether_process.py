"""The process at the other end of a tether: run as a file, so that it imports nothing of duly.

It reads from its keeper until when it may live. When that is over, the kernel kills it, also while
it is stopped, and so closes its end of the pipe to which the keeper's children are tied.
"""

import ctypes
import os
import signal
import struct
import sys
import time

WORD = struct.Struct("=d")
"""Until when to live, by the clock below."""
CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""As `duly.clock.monotonic`."""
_TIMER_ABSTIME = 1
_SIGEV_SIGNAL = 0
_NANOSECONDS = 1_000_000_000


class _Event(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _Moment(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Setting(ctypes.Structure):
    _fields_ = (("interval", _Moment), ("value", _Moment))


class Timer:
    """A timer of the kernel's that kills this process."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        if not hasattr(self._libc, "timer_create"):  # before glibc 2.34
            self._libc = ctypes.CDLL("librt.so.1", use_errno=True)
        self._timer = ctypes.c_void_p()
        event = _Event(None, signal.SIGKILL, _SIGEV_SIGNAL)
        self._check(self._libc.timer_create(CLOCK, ctypes.byref(event), ctypes.byref(self._timer)))

    def set(self, at: float) -> None:
        """Expire then, and no sooner."""
        seconds, nanoseconds = divmod(round(at * _NANOSECONDS), _NANOSECONDS)
        setting = _Setting(_Moment(0, 0), _Moment(seconds, nanoseconds))
        self._check(
            self._libc.timer_settime(self._timer, _TIMER_ABSTIME, ctypes.byref(setting), None)
        )

    @staticmethod
    def _check(status: int) -> None:
        if status != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def main() -> None:
    """Live as long as the keeper says; end with it."""
    # Who stops a whole service signals all of its processes; only the keeper's end is ours.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    timer = Timer()
    while words := os.read(sys.stdin.fileno(), 64 * WORD.size):
        (until,) = WORD.unpack(words[-WORD.size :])
        timer.set(until)


if __name__ == "__main__":
    main()
