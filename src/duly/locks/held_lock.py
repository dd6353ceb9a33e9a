"""A held lock, which is renewed in the background until it is released or lost."""

import os
import threading
from collections.abc import Callable
from typing import Self

from duly.clock import monotonic
from duly.errors import LockLost, StoreError
from duly.heartbeat import HeartbeatThread
from duly.locks.ownership import Ownership


class HeldLock:
    """A held lock."""

    def __init__(
        self,
        ownership: Ownership,
        sent_at: float,
        on_lost: Callable[["HeldLock"], None] | None,
    ) -> None:
        """Start renewing a lock that was requested at `sent_at`."""
        self.name = ownership.name
        self.fence = ownership.fence
        """A number that grows with every holder. Pass it to stores that refuse smaller numbers."""
        self.lost = threading.Event()
        """Set when the lock could not be renewed in time."""
        self._ownership = ownership
        self._on_lost = on_lost
        self._pid = os.getpid()
        self._released = False
        ttl = ownership.ttl
        margin = ttl / 6
        self._deadline = sent_at + ttl - margin
        self._keepalive = HeartbeatThread(
            _LockHeartbeat(ownership, self._not_renewed),
            lambda: {ownership.owner: self._renewed},
            lambda _owner: self._lose(),
            lease=ttl,
            beat=ttl / 3,
            margin=margin,
        )
        self._keepalive.start(after=ttl / 3)

    @property
    def is_held(self) -> bool:
        """True if, as far as is known here, no other caller can hold the lock."""
        is_ours = not self._released and not self.lost.is_set() and self._is_of_this_process()
        return is_ours and monotonic() < self._deadline

    def check(self) -> None:
        """Raise LockLost unless the lock is certainly held."""
        if not self.is_held:
            raise LockLost(self.name, self.fence)

    def release(self) -> bool:
        """Release the lock. Return whether this process still held it."""
        if self._released or not self._is_of_this_process():
            return False
        self._released = True
        self._keepalive.stop()
        return self._ownership.release()

    def __repr__(self) -> str:
        return f"<lock {self.name!r}, fence {self.fence}, {'held' if self.is_held else 'not held'}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_of_this_process(self) -> bool:
        """Return False in a forked child, which does not hold its parent's locks."""
        return self._pid == os.getpid()

    def _renewed(self, deadline: float) -> None:
        self._deadline = deadline

    def _not_renewed(self) -> None:
        if monotonic() >= self._deadline:
            self._lose()

    def _lose(self) -> None:
        if self._released or self.lost.is_set():
            return
        self.lost.set()
        self._keepalive.stop()
        if self._on_lost is not None:
            self._on_lost(self)


class _LockHeartbeat:
    """The heartbeat writer of one lock, whose only member is the lock's owner."""

    def __init__(self, ownership: Ownership, failed: Callable[[], None]) -> None:
        self._ownership = ownership
        self._failed = failed

    def beat(self, worker_ids: list[str]) -> set[str]:
        """Renew the lock. Return the owner if it still holds the lock."""
        try:
            is_ours = self._ownership.renew()
        except (StoreError, OSError):
            self._failed()
            raise
        return set(worker_ids) if is_ours else set()
