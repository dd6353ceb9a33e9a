"""Instants of the store, for machines (ISO 8601, UTC) and for people ("3 s ago")."""

from duly.core.instants import moment

_STEPS = ((60, 1, "s"), (3_600, 60, "min"), (86_400, 3_600, "h"))


def iso(microseconds: int | None) -> str | None:
    """Return `2030-01-31T08:00:00.000000Z`."""
    if microseconds is None:
        return None
    return moment(microseconds).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def relative(microseconds: int | None, now: int) -> str:
    """Return `3 s ago`, `in 5 min` or `now`."""
    if microseconds is None:
        return ""
    away = microseconds - now
    length = span(abs(away))
    if abs(away) < 1_000_000:  # noqa: PLR2004 - a second
        return "now"
    return f"in {length}" if away > 0 else f"{length} ago"


def span(microseconds: int) -> str:
    """Return a length of time in its largest unit, rounded down."""
    seconds = microseconds // 1_000_000
    for below, unit, name in _STEPS:
        if seconds < below:
            return f"{seconds // unit} {name}"
    days = seconds // 86_400
    return f"{days} d"


def shown(microseconds: int | None, now: int) -> str:
    """Return an instant with its distance, to the second."""
    text = iso(microseconds)
    if text is None:
        return ""
    return f"{text[:19].replace('T', ' ')} UTC ({relative(microseconds, now)})"
