"""How tallies are added up as they grow old."""

from typing import NamedTuple

_SECOND = 1_000_000
_MINUTE = 60
_HOUR = 3600
_FOREVER = 86_400
"""The span of what was so long ago that only its sum is of use."""


class Fold(NamedTuple):
    """Tallies of one span, and before an instant, become such of a longer one."""

    span: int
    longer: int
    width: int
    """Microseconds; they are counted from the begin of a multiple of it."""
    before: int


def folds(now: int) -> tuple[Fold, ...]:
    """Return what is to be added up: charts need minutes of two hours, and hours of eight days."""
    return (
        Fold(0, _MINUTE, _MINUTE * _SECOND, now),
        Fold(_MINUTE, _HOUR, _HOUR * _SECOND, now - 2 * _HOUR * _SECOND),
        Fold(_HOUR, _FOREVER, 2**62, now - 8 * 86_400 * _SECOND),
    )
