"""The options of schedules, and of tasks that run on a schedule."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, TypedDict

from duly.core.retry import Retry
from duly.core.schedule import Misfire, Overlap

if TYPE_CHECKING:
    from duly.carrier import Carrier


class ScheduleOptions(TypedDict, total=False):
    """The options for instants that were missed, or that come due while the last run is live."""

    misfire: Misfire
    """Which missed instants run: the "latest", "all", or none with "skip"."""
    grace: float | timedelta | None
    """How late an instant may be and still fire. None means no bound."""
    max_catch_up: int
    overlap: Overlap | None
    """While the last run is live: "skip", "queue" after it, or "allow" both."""
    jitter: float | timedelta
    """Delay every instant by up to this long. Every process computes the same delay."""
    start: datetime | None
    end: datetime | None
    pause_after: int | None
    """The number of consecutive failed runs after which the schedule pauses itself."""


class ScheduledTaskOptions(ScheduleOptions, total=False):
    """The options of a schedule and of `@app.task`."""

    retries: int | Retry
    timeout: float | None
    queue: str
    priority: int
    on_crash: str
    executor: str | None
    transaction: bool
    transaction_limit: float | None
    key_ttl: float | None
    unique: str
    expires: float | None
    aliases: tuple[str, ...]
    redact: tuple[str, ...]
    carrier: "Carrier | None"
    limit: int | None
    limit_key: Callable[..., str] | None
    retention: float | timedelta | str | None


SCHEDULE_OPTIONS = frozenset(ScheduleOptions.__annotations__)
