"""Instants: microseconds since 1970 as they are stored, datetimes as programs have them."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)


def moment(microseconds: int) -> datetime:
    """Return a stored instant as a datetime; one beyond the last year is the last that there is."""
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return _LAST


def microseconds_of(moment: datetime) -> int:
    """Return an aware datetime as it is stored."""
    return (moment - _EPOCH) // _MICROSECOND
