"""Converts instants between stored microseconds since 1970, datetimes and ISO 8601 text."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = datetime.max.replace(tzinfo=UTC)


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
