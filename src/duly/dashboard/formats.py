"""Formats instants, durations, counts and stored values for display."""

import json
import math

from duly.core.instants import moment
from duly.core.json_text import size_of
from duly.limits import COUNT_CAP, DEAD_COUNT_CAP

_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_SECOND = 1_000_000
_FINE_SECONDS = 10
NONE = "–"  # noqa: RUF001 - a typographic dash


def iso(microseconds: int) -> str:
    """Return `2030-01-31T08:00:00.123Z`."""
    return moment(microseconds).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def exact(microseconds: int) -> str:
    """Return `2030-01-31 08:00:00.123 UTC`."""
    return moment(microseconds).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def ago(microseconds: int, now: int) -> str:
    """Return `3 s ago`, `in 5 min` or `now`."""
    away = microseconds - now
    if abs(away) < _SECOND:
        return "now"
    return f"in {coarse(away)}" if away > 0 else f"{coarse(-away)} ago"


def coarse(microseconds: int) -> str:
    """Return a duration in its largest unit, rounded down."""
    seconds = microseconds // _SECOND
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return "0 s"


def length(microseconds: float | None) -> str:
    """Return a duration with useful precision: `12 ms`, `1.25 s`, `2 h 5 min`."""
    if microseconds is None:
        return NONE
    if microseconds < 1_000:  # noqa: PLR2004 - a millisecond
        return f"{int(microseconds)} µs"
    if microseconds < _SECOND:
        return f"{microseconds / 1_000:.3g} ms"
    seconds = microseconds / _SECOND
    if seconds < _FINE_SECONDS:
        return f"{seconds:.2f} s"
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{seconds:.1f} s"
    whole = int(seconds)
    parts: list[str] = []
    for unit, name in _UNITS:
        if whole >= unit and len(parts) < 2:  # noqa: PLR2004 - two units are enough
            parts.append(f"{whole // unit} {name}")
            whole %= unit
    return " ".join(parts)


def exact_length(microseconds: int) -> str:
    """Return a duration to the microsecond: `12.345 ms`, `2 h 5 min 3.000001 s`."""
    if microseconds < _SECOND:
        return f"{microseconds / 1_000:.3f} ms"
    whole, rest = divmod(microseconds, _SECOND)
    parts: list[str] = []
    for unit, name in _UNITS[:-1]:
        if whole >= unit:
            parts.append(f"{whole // unit} {name}")
            whole %= unit
    return " ".join([*parts, f"{whole}.{rest:06} s"])


def count(number: int) -> str:
    """Return a number. Numbers above the counting limit end with `+`."""
    return f"{COUNT_CAP:,}+" if number > COUNT_CAP else f"{number:,}"


def count_dead(number: int) -> str:
    """Return the number of dead letters, which has a lower counting limit than other numbers."""
    return f"{DEAD_COUNT_CAP:,}+" if number > DEAD_COUNT_CAP else f"{number:,}"


def percent(part: float, whole: float) -> str:
    """Return a share in percent, as `0 %` only if it is zero."""
    if not whole:
        return NONE
    share = 100 * part / whole
    if 0 < share < 0.1:  # noqa: PLR2004 - the least share shown
        return "< 0.1 %"
    return f"{share:.3g} %" if share < 10 else f"{share:.0f} %"  # noqa: PLR2004


def short_task(name: str) -> str:
    """Return the function name of a task."""
    return name.rpartition(":")[2] or name


def pretty(text: str | None) -> str:
    """Return stored JSON, indented. Integers are exact."""
    if text is None:
        return "null"
    try:
        data = json.loads(text)
        shown = json.dumps(data, indent=2, ensure_ascii=False)
        # A lone surrogate cannot be encoded, so show it escaped.
        return shown if size_of(shown) < math.inf else json.dumps(data, indent=2)
    except (ValueError, RecursionError):
        return text
