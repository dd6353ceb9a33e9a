"""Instants and durations as people read them: `3 s ago`, `1.25 s`, `2030-01-31 08:00:00 UTC`.

The dashboard's script computes `relative` and `coarse_duration` in the browser, too.
"""

from duly.core.instants import moment

_MILLISECOND = 1_000
_SECOND = 1_000_000
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_LONG_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"))


def relative(microseconds: int | None, now: int) -> str:
    """Return a distance in time as `3 s ago`, `in 5 min` or `now`."""
    if microseconds is None:
        return ""
    away = microseconds - now
    if abs(away) < _SECOND:
        return "now"
    return f"in {coarse_duration(away)}" if away > 0 else f"{coarse_duration(-away)} ago"


def coarse_duration(microseconds: int) -> str:
    """Return a duration in its largest unit, rounded down: `0 s`, `59 s`, `3 d`."""
    seconds = microseconds // _SECOND
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return "0 s"


def duration(microseconds: float) -> str:
    """Return a duration with useful precision: `600 µs`, `12 ms`, `1.25 s`, `2 h 5 min`.

    It is rounded down, as `floor` does it in every language.
    """
    if microseconds < _MILLISECOND:
        return f"{int(microseconds)} µs"
    if microseconds < 10 * _MILLISECOND:
        return f"{microseconds // 100 / 10:.1f} ms"
    if microseconds < _SECOND:
        return f"{int(microseconds // _MILLISECOND)} ms"
    if microseconds < 10 * _SECOND:
        return f"{microseconds // 10_000 / 100:.2f} s"
    if microseconds < 60 * _SECOND:
        return f"{microseconds // 100_000 / 10:.1f} s"
    whole, rest = _whole_units(int(microseconds // _SECOND))
    return " ".join([*whole, *([f"{rest} s"] if rest else [])][:2])


def exact_duration(microseconds: int) -> str:
    """Return a duration to the microsecond: `12.345 ms`, `2 h 5 min 3.000001 s`."""
    if microseconds < _SECOND:
        return f"{microseconds / _MILLISECOND:.3f} ms"
    seconds, rest = divmod(microseconds, _SECOND)
    whole, seconds = _whole_units(seconds)
    return " ".join([*whole, f"{seconds}.{rest:06} s"])


def interval_words(microseconds: int) -> str:
    """Return an interval for a sentence that begins with `every`: `5 minutes`, `day`."""
    seconds = microseconds / _SECOND
    for size, unit in _LONG_UNITS:
        if seconds >= size and seconds % size == 0:
            count = int(seconds // size)
            return unit if count == 1 else f"{count} {unit}s"
    return "second" if seconds == 1 else f"{seconds:g} seconds"


def utc_text(microseconds: int) -> str:
    """Return `2030-01-31 08:00:00 UTC`."""
    return f"{moment(microseconds):%Y-%m-%d %H:%M:%S} UTC"


def exact_utc_text(microseconds: int) -> str:
    """Return `2030-01-31 08:00:00.123 UTC`."""
    return f"{moment(microseconds):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def shown_instant(microseconds: int | None, now: int) -> str:
    """Return an instant with its distance, to the second."""
    if microseconds is None:
        return ""
    return f"{utc_text(microseconds)} ({relative(microseconds, now)})"


def _whole_units(seconds: int) -> tuple[list[str], int]:
    """Return the days, hours and minutes that are not zero, and the remaining seconds."""
    whole = []
    for unit, name in _UNITS[:-1]:
        if seconds >= unit:
            whole.append(f"{seconds // unit} {name}")
            seconds %= unit
    return whole, seconds
