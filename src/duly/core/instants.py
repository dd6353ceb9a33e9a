"""Converts instants between stored microseconds since 1970 and datetimes.

As text they are ISO 8601 for machines, and "3 s ago" for people.
"""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)

_STEPS = ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h"))


def moment(microseconds: int) -> datetime:
    """Return a stored instant as a datetime. Beyond the last year, return the last datetime."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LAST


def microseconds_of(moment: datetime) -> int:
    """Return an aware datetime in its stored form."""
    return (moment - _EPOCH) // _MICROSECOND


def iso(microseconds: int | None) -> str | None:
    """Return an instant as `2030-01-31T08:00:00.000000Z`."""
    if microseconds is None:
        return None
    return moment(microseconds).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def relative(microseconds: int | None, now: int) -> str:
    """Return a distance as `3 s ago`, `in 5 min` or `now`."""
    if microseconds is None:
        return ""
    away = microseconds - now
    length = duration_text(abs(away))
    if abs(away) < 1_000_000:  # noqa: PLR2004 - a second
        return "now"
    return f"in {length}" if away > 0 else f"{length} ago"


def duration_text(microseconds: int) -> str:
    """Return a duration in its largest unit, rounded down."""
    seconds = microseconds // 1_000_000
    for below, unit, name in _STEPS:
        if seconds < below:
            return f"{seconds // unit} {name}"
    days = seconds // 86_400
    return f"{days} d"


def seconds_text(microseconds: int) -> str:
    """Return a length of time to the millisecond: `0.350 s`."""
    return f"{microseconds / 1_000_000:.3f} s"


def utc_text(microseconds: int) -> str:
    """Return `2030-01-31 08:00:00 UTC`."""
    return f"{moment(microseconds):%Y-%m-%d %H:%M:%S} UTC"


def shown_instant(microseconds: int | None, now: int) -> str:
    """Return an instant with its distance, to the second."""
    if microseconds is None:
        return ""
    return f"{utc_text(microseconds)} ({relative(microseconds, now)})"
