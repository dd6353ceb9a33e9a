"""How tallies are added up as they grow old, and where a prune goes on to look."""

from typing import NamedTuple

from duly.limits import RETENTION_SECONDS

_SECOND = 1_000_000
_MINUTE = 60
_HOUR = 3600
_FOREVER = 86_400
"""The span of what was so long ago that only its sum is of use."""
_LATE = _MINUTE * _SECOND


class CountRollup(NamedTuple):
    """Tallies of one span, and before an instant, become such of a longer one."""

    span: int
    longer: int
    width: int
    """Microseconds; they are counted from the begin of a multiple of it."""
    before: int


def count_rollups(now: int) -> tuple[CountRollup, ...]:
    """Return what is to be added up: charts need minutes of two hours, and hours of eight days."""
    return (
        CountRollup(0, _MINUTE, _MINUTE * _SECOND, now),
        CountRollup(_MINUTE, _HOUR, _HOUR * _SECOND, now - 2 * _HOUR * _SECOND),
        CountRollup(_HOUR, _FOREVER, 2**62, now - 8 * 86_400 * _SECOND),
    )


def next_prune_position(after: int, last: int, now: int, *, is_full: bool) -> int:
    """Return from which end on to look next for runs that are kept for a short time.

    One that is written down later may have ended a little earlier, so the last minute is looked at
    again; and a look that was full must get on.
    """
    if is_full:
        return max(last, after + 1)
    return min(last, now - _LATE)


def default_retention(older_than: int) -> int:
    """Return for how long to keep what nobody looks at, although runs may be kept for ever."""
    return min(older_than, round(RETENTION_SECONDS) * _SECOND)
