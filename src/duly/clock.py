"""Time and identity: the only module that reads a clock or draws a random number."""

import os
import random
import threading
import time
from functools import cache, partial
from typing import Protocol

MICROSECONDS = 1_000_000
FIRST_PAUSE = 0.01
"""Seconds. The first and the shortest pause of a caller that polls."""

if hasattr(time, "CLOCK_BOOTTIME"):
    # Unlike CLOCK_MONOTONIC, this clock continues while the machine is suspended. So a laptop that
    # slept past its lease knows this when it wakes.
    monotonic = partial(time.clock_gettime, time.CLOCK_BOOTTIME)
else:  # pragma: no cover - other systems have no such clock
    monotonic = time.monotonic  # type: ignore[assignment]
"""Seconds that only grow, also while the machine is suspended."""


def boot_id() -> bytes:
    """Return an id of this boot of the machine."""
    try:
        return _read_boot_id()
    except OSError:
        return bytes(16)


@cache
def _read_boot_id() -> bytes:
    # open, since importing pathlib would slow down every program that only enqueues.
    with open("/proc/sys/kernel/random/boot_id") as file:  # noqa: PTH123
        return bytes.fromhex(file.read().strip().replace("-", ""))


class Clock(Protocol):
    """Wall time, and time since the machine was started, both in microseconds."""

    def now(self) -> int:
        """Return the wall time since 1970, in UTC."""
        ...

    def uptime(self) -> int:
        """Return the time since the machine was started.

        Setting the wall clock does not change it.
        """
        ...


class SystemClock:
    """The clock of this host."""

    def now(self) -> int:
        """Return the wall time."""
        return time.time_ns() // 1_000

    def uptime(self) -> int:
        """Return the time since the machine was started."""
        return int(monotonic() * MICROSECONDS)


class RunIds:
    """Makes UUIDv7 texts that only grow within one process, including forked children."""

    def __init__(self) -> None:
        self.reset_after_fork()
        # A thread of the parent may have held the lock at the fork, and can never release it here.
        os.register_at_fork(after_in_child=self.reset_after_fork)

    def reset_after_fork(self) -> None:
        """Replace the state that was inherited from the parent process."""
        self._lock = threading.Lock()
        self._last = 0
        # Seeded by the system. Ids must be unique, but they are not secret.
        self._bits = random.Random().getrandbits  # noqa: S311

    def next(self) -> str:
        """Return a new id."""
        with self._lock:
            # 48 bits of milliseconds and 26 of sequence form one growing number. If the clock steps
            # back, the sequence carries into the milliseconds.
            drawn = time.time_ns() // 1_000_000 << 26 | self._bits(23)
            self._last = last = drawn if drawn > self._last else self._last + 1
            tail = self._bits(48)
        version, variant = 7 << 76, 2 << 62
        upper = last >> 26 << 80 | version | (last >> 14 & 0xFFF) << 64
        text = (upper | variant | (last & 0x3FFF) << 48 | tail).to_bytes(16).hex()
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


run_ids = RunIds()


new_id = run_ids.next
"""Return a UUIDv7 that is later than all earlier ones of this process."""


def new_secret() -> str:
    """Return 256 random bits that cannot be guessed, as text that fits into headers."""
    return os.urandom(32).hex()


def wall_seconds() -> float:
    """Return the wall time of this host, for values that only this host compares."""
    return time.time()


def longer_pause(pause: float, *, longest: float, left: float) -> float:
    """Return the next pause of a caller that polls: up to twice as long, within the time left."""
    grown = min(2 * pause, longest) * (0.5 + jitter() / 2)
    return min(left, max(grown, FIRST_PAUSE))


def jitter() -> float:
    """Return a random number in [0, 1), for spreading retries and back-offs."""
    return random.random()  # noqa: S311 - spreading load, nothing secret
