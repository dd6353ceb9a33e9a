"""Numbers, rates and lengths of time that people give, checked and read."""

import math
import re

from duly.errors import BadOption
from duly.limits import FOREVER_SECONDS

FOREVER = math.inf
_SLOWEST = 1e-6
"""One in eleven days: threads cannot be told to wait much longer."""
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)", re.ASCII)
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def amount(number: int, noun: str) -> str:
    """Return `1 run`, or `2,000 runs`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def check_count(what: str, value: object) -> None:
    """Refuse what is no whole number, or no thing at all."""
    if type(value) is not int or value < 1:
        message = f"{what} must be a whole number, at least 1, not {value!r:.80}"
        raise BadOption(message)


def check_seconds(what: str, value: object) -> None:
    """Refuse what is no length of time."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        message = f"{what} must be a number of seconds, not {value!r:.80}"
        raise BadOption(message)


def check_rate(rate: float | None) -> None:
    """Refuse what is no number of things per second; None is any."""
    is_number = isinstance(rate, int | float) and not isinstance(rate, bool)
    if rate is not None and not (is_number and _SLOWEST <= rate < math.inf):
        message = f"rate must be a number per second, at least {_SLOWEST:f}, not {rate!r:.80}"
        raise BadOption(message)


def check_retention(what: str, value: object) -> None:
    """Refuse what is no length of time to keep something for; it may be infinite."""
    if value != math.inf:
        check_seconds(what, value)
    if isinstance(value, int | float) and value < 0:
        message = (
            f"{what} must be 0 or more, not {value!r}; 0 keeps nothing, FOREVER keeps everything"
        )
        raise BadOption(message)


def retention_of(value: object) -> float:
    """Read how long something is kept: seconds, `7d`, or `forever`."""
    return FOREVER if value in {"forever", None} else read_seconds(value)


def kept_microseconds(seconds: float) -> int:
    """Return how long something is kept, as stores count it."""
    return round(min(seconds, FOREVER_SECONDS) * 1_000_000)


def seconds_of(text: str) -> float:
    """Read `90`, `90s`, `15m`, `24h`, `7d`, `2w`; a number alone counts seconds."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise BadOption(f"{text!r} is not a duration; write 90s, 15m, 24h or 7d")
    return float(found[1]) * _UNITS[found[2]]


def read_seconds(value: object) -> float:
    """Read a length of time: a number of seconds, or a text such as `7d`."""
    if isinstance(value, str):
        return seconds_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError("it must be a number of seconds, or a string such as 90s, 15m or 7d")
    return float(value)
