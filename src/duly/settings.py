"""What can be set, where it comes from, and what is refused."""

import math
import os
from dataclasses import dataclass, fields
from typing import Any

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
        check_count("concurrency", self.concurrency)
        check_count("async_limit", self.async_limit)
        if self.process_limit is not None:
            check_count("process_limit", self.process_limit)
        for name in ("lease", "beat", "grace", "retention", "dead_retention", "recheck"):
            check_seconds(name, getattr(self, name))
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


def worker_settings(*, queues: str | None = None, **chosen: Any) -> WorkerSettings:  # noqa: ANN401
    """Return the settings that were chosen by name, or say which of them there is not."""
    known = [each.name for each in fields(WorkerSettings)]
    for name in chosen:
        if name not in known:
            message = f"a worker has no setting {name!r}; it has {', '.join(known)}"
            raise BadOption(message)
    return WorkerSettings(queues=parse_queues(queues), **chosen)


def check_count(what: str, value: object) -> None:
    """Refuse what is no whole number, or no thing at all."""
    if type(value) is not int or value < 1:
        message = f"{what} must be a whole number, at least 1, not {value!r:.80}"
        raise BadOption(message)


def check_seconds(what: str, value: object) -> None:
    """Refuse what is no length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        message = f"{what} must be a number of seconds, not {value!r:.80}"
        raise BadOption(message)


def parse_queues(text: str | None) -> tuple[tuple[str, int | None], ...]:
    """Read `mail:20,default`."""
    if text is not None and not isinstance(text, str):
        message = f'queues must be a text such as "mail:20,default", not {text!r:.80}'
        raise BadOption(message)
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
