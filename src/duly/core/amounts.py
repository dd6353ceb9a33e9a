"""Checks and parses the numbers, rates, durations and times that users pass."""

import math
import re
from datetime import datetime, timedelta

from duly.core.instants import microseconds_of
from duly.errors import BadOption
from duly.limits import DELAY_SECONDS, FOREVER_SECONDS, PRIORITY

FOREVER = math.inf
_SLOWEST = 1e-6
"""One per eleven days. Threads cannot wait much longer."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
DURATION_UNITS = ("s", "m", "h", "d", "w")
"""The last letter of a duration, unless it is a number of seconds."""


def amount(number: int, noun: str) -> str:
    """Return `1 run`, or `2,000 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def check_count(what: str, value: object) -> None:
    """Raise BadOption unless the value is a whole number of at least 1."""
    if type(value) is not int or value < 1:
        message = f"{what} must be a whole number, at least 1, not {value!r:.80}"
        raise BadOption(message)


def check_seconds(what: str, value: object) -> None:
    """Raise BadOption unless the value is a finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        message = f"{what} must be a number of seconds, not {value!r:.80}"
        raise BadOption(message)


def check_priority(value: int) -> int:
    """Return a priority, or raise BadOption if it is not valid."""
    if type(value) is not int or abs(value) > PRIORITY:
        message = f"priority must be a whole number within ±{PRIORITY}, not {value!r}"
        raise BadOption(message)
    return value


def check_rate(rate: float | None) -> None:
    """Raise BadOption unless the rate is a positive number per second. None means no bound."""
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and _SLOWEST <= rate < math.inf):
        message = f"rate must be a number per second, at least {_SLOWEST:f}, not {rate!r:.80}"
        raise BadOption(message)


def check_retention(what: str, value: object) -> None:
    """Raise BadOption unless the value is a retention time, which may be infinite."""
    if value != math.inf:
        check_seconds(what, value)
    if isinstance(value, int | float) and value < 0:
        message = (
            f"{what} must be 0 or more, not {value!r}; 0 keeps nothing, FOREVER keeps everything"
        )
        raise BadOption(message)


def retention_of(value: object) -> float:
    """Return a retention time given as seconds, `7d`, or `forever`."""
    return FOREVER if value in {"forever", None} else read_seconds(value)


def bounded_microseconds(seconds: float) -> int:
    """Return a duration in microseconds, at most the longest that stores accept."""
    return round(min(seconds, FOREVER_SECONDS) * 1_000_000)


def seconds_of(text: str) -> float:
    """Return the seconds of `90`, `90s`, `15m`, `24h`, `7d` or `2w`. Bare numbers are seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadOption(f"{text!r} is not a duration; write 90s, 15m, 24h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def read_seconds(value: object) -> float:
    """Return the seconds of a duration: a number of seconds, or a text such as `7d`."""
    if isinstance(value, str):
        return seconds_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("it must be a number of seconds, or a string such as 90s, 15m or 7d")
    return float(value)


def microseconds(what: str, value: float | timedelta) -> int:
    """Return a duration in microseconds, or raise BadOption."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        message = f"{what} must be a number of seconds or a timedelta, not {value!r}"
        raise BadOption(message)
    if not 0 <= seconds <= DELAY_SECONDS:
        message = f"{what} must be from 0 to {DELAY_SECONDS} seconds, not {seconds!r}"
        raise BadOption(message)
    return int(seconds * 1_000_000)


def instant(what: str, value: datetime) -> int:
    """Return an aware datetime in microseconds, or raise BadOption."""
    if not isinstance(value, datetime):
        message = f"{what} must be a datetime, not {value!r}"
        raise BadOption(message)
    if value.tzinfo is None or value.utcoffset() is None:
        message = (
            f"{what}={value.isoformat()} has no time zone, so it is ambiguous; use an aware "
            "datetime, e.g. datetime.now(timezone.utc) + timedelta(hours=1)"
        )
        raise BadOption(message)
    return microseconds_of(value)
