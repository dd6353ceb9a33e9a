"""How workers show that they live, and who looks at it."""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from duly.limits import LEASE_SECONDS


class HeartbeatReading(NamedTuple):
    """What a look at a live worker's beats shows."""

    beats: int | None
    """Its counter; None where the process is surely gone."""
    age: float = 0.0
    """Seconds since its last beat, by the store's clock: a hint when to look, and no proof."""
    is_running: bool = False
    """True if the process itself is known to exist and not to be stopped. It is alive though it
    may not beat, for example while a C extension holds the interpreter's lock."""
    lease: float = LEASE_SECONDS
    """The worker's own lease in seconds, which may differ from the reader's."""


class Heartbeats(Protocol):
    """Shows that workers live, and who does not. See docs/internals/engine.md on leases."""

    def beat(self, worker_ids: Sequence[str]) -> set[str]:
        """Count one beat for each; return those the store still calls live."""
        ...

    def read(self) -> dict[str, HeartbeatReading]:
        """Look at every live worker once."""
        ...

    def is_watcher(self, worker_ids: Collection[str], within: float) -> bool:
        """Return whether one of these workers should read the beats of all others.

        With few workers every one should, with many only some that have beaten within `within`
        seconds.
        """
        ...

    def refuse_beats(self, worker_id: str, beats: int) -> bool:
        """Acknowledge no later beat of a worker; return whether none came since that count.

        Where the counters lie in the database, `Recover` looks at them itself, and this does
        nothing.
        """
        ...

    def forget(self, worker_id: str) -> None:
        """Clear away what a recovered worker left behind."""
        ...


class LivenessHandle(Protocol):
    """Held by the process that is the worker."""

    def end(self) -> None: ...
