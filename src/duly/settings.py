"""What can be set, where it comes from, and what is refused."""

import os
from dataclasses import dataclass

from duly.errors import BadOption
from duly.limits import (
    BEAT_SECONDS,
    CLAIM_BATCH,
    DEAD_RETENTION_SECONDS,
    GRACE_SECONDS,
    LEASE_MARGIN_SECONDS,
    LEASE_SECONDS,
    LOOK_SECONDS,
    RECHECK_SECONDS,
    RETENTION_SECONDS,
)

DEFAULT_URL = "sqlite:///duly.db"


def store_url(given: str | None) -> str:
    """Return the address of the store: as given, or DULY_URL, or a file in this folder."""
    return given or os.environ.get("DULY_URL") or DEFAULT_URL


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How one worker works."""

    concurrency: int = 10
    async_limit: int = 200
    process_limit: int | None = None
    """Of the bodies that `concurrency` allows, how many may run in processes; all, if None."""
    queues: tuple[tuple[str, int | None], ...] = ()
    """Which queues, each with its limit per worker; none named means every queue."""
    lease: float = LEASE_SECONDS
    beat: float = BEAT_SECONDS
    grace: float = GRACE_SECONDS
    retention: float = RETENTION_SECONDS
    dead_retention: float = DEAD_RETENTION_SECONDS
    """How long dead letters are kept: there is still something to be done about them."""
    recheck: float = RECHECK_SECONDS
    """How often to look at what runs wait for, lest a lost wake-up stay lost."""
    carries: bool = False
    """Runs what another engine's workers are brought, and claims nothing else."""
    one_slot: bool = False
    """Runs one suspect at a time and nothing else."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in ("concurrency", "async_limit"):
            if getattr(self, name) < 1:
                message = f"{name} must be at least 1, not {getattr(self, name)}"
                raise BadOption(message)
        if self.process_limit is not None and self.process_limit < 1:
            message = f"process_limit must be at least 1, or None, not {self.process_limit}"
            raise BadOption(message)
        # Three times 0.2 is more than 0.6 in binary.
        if self.beat <= 0 or self.beat * 3 > self.lease * (1 + 1e-9):
            message = (
                f"the lease ({self.lease} s) must be at least three beats ({self.beat} s each)"
            )
            raise BadOption(message)
        if self.grace < 0:
            message = f"the grace must not be negative, not {self.grace}"
            raise BadOption(message)

    @property
    def margin(self) -> float:
        """How long before the lease's end a worker fences itself."""
        return min(LEASE_MARGIN_SECONDS, self.lease / 5)

    @property
    def look(self) -> float:
        """How often a worker's main thread looks at its deadline; well within the margin."""
        return min(LOOK_SECONDS, self.margin / 2)

    @property
    def marks(self) -> int:
        """How many started bodies can be told to the keeper at once."""
        return self.concurrency + self.async_limit + 4 * CLAIM_BATCH


def parse_queues(text: str | None) -> tuple[tuple[str, int | None], ...]:
    """Read `mail:20,default`."""
    found = []
    for item in filter(None, (text or "").split(",")):
        name, colon, limit = item.strip().rpartition(":")
        if not colon:
            name, limit = limit, ""
        if not name or (colon and (not limit.isdigit() or int(limit) < 1)):
            message = f"queue {item!r} is not of the form name or name:limit"
            raise BadOption(message)
        found.append((name, int(limit) if limit else None))
    return tuple(found)
