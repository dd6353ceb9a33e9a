"""Interfaces for the heartbeats of workers."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from duly.limits import LEASE_SECONDS


class HeartbeatReading(NamedTuple):
    """The result of reading a live worker's heartbeats."""

    beats: int | None
    """The worker's counter; None if the process has certainly ended."""
    age: float = 0.0
    """Seconds since the last heartbeat, by the store's clock: a hint when to check, not a proof."""
    is_running: bool = False
    """True if the process is known to exist and not to be stopped. It is alive even without
    heartbeats, for example while a C extension holds the interpreter's lock."""
    lease: float = LEASE_SECONDS
    """The worker's own lease in seconds, which may differ from the reader's."""


class Heartbeats(Protocol):
    """Records and reads heartbeats of workers. See docs/internals/engine.md on leases."""

    def beat(self, worker_ids: Sequence[str]) -> set[str]:
        """Record a heartbeat for each worker; return the workers that are live in the store."""
        ...

    def read(self) -> dict[str, HeartbeatReading]:
        """Read the heartbeats of every live worker once."""
        ...

    def is_watcher(self, worker_ids: Collection[str], within: float) -> bool:
        """Return whether one of these workers should read the heartbeats of all others.

        If there are few workers, every one should. If there are many, only some of those should
        that had a heartbeat within `within` seconds.
        """
        ...

    def refuse_beats(self, worker_id: str, beats: int) -> bool:
        """Refuse later heartbeats of a worker; return whether its counter is still `beats`.

        If the counters are in the database, `Recover` checks them itself, and this does nothing.
        """
        ...

    def forget(self, worker_id: str) -> None:
        """Remove the files or rows of a recovered worker."""
        ...


class LivenessHandle(Protocol):
    """A handle that the worker's process holds while the worker lives."""

    def end(self) -> None: ...
