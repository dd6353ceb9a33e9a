"""How counts are added up as they grow old, and where a prune continues."""

from typing import NamedTuple

from duly.limits import RETENTION_SECONDS

_SECOND = 1_000_000
_MINUTE = 60
_HOUR = 3600
_FOREVER = 86_400
"""The span of counts that are so old that only their sum is of use."""
_LATE = _MINUTE * _SECOND


class CountRollup(NamedTuple):
    """Counts of one span that are older than `age` are added up into counts of a longer span."""

    span: int
    longer: int
    width: int
    """Microseconds. A count of the longer span begins at a multiple of this."""
    age: int


COUNT_ROLLUPS = (
    CountRollup(0, _MINUTE, _MINUTE * _SECOND, 0),
    CountRollup(_MINUTE, _HOUR, _HOUR * _SECOND, 2 * _HOUR * _SECOND),
    CountRollup(_HOUR, _FOREVER, 2**62, 8 * 86_400 * _SECOND),
)
"""Charts need the minutes of two hours, and the hours of eight days."""


def next_prune_position(after: int, last: int, now: int, *, is_full: bool) -> int:
    """Return the time of the end after which the next prune looks for runs with a short retention.

    A run that is settled later may have ended slightly earlier, so the last minute is read again.
    A prune that reached its limit must advance.
    """
    if is_full:
        return max(last, after + 1)
    return min(last, now - _LATE)


def default_retention(older_than: int) -> int:
    """Return how long to keep records other than runs, even if runs are kept for ever."""
    return min(older_than, round(RETENTION_SECONDS) * _SECOND)
