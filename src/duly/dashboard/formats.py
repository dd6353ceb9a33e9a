"""Formats counts, shares and stored values for display."""

import json
import math

from duly.core.json_text import size_of
from duly.core.time_text import duration
from duly.limits import COUNT_CAP, DEAD_COUNT_CAP

NONE = "–"  # noqa: RUF001 - a typographic dash


def took(microseconds: float | None) -> str:
    """Return a duration, or a dash if there is none."""
    return NONE if microseconds is None else duration(microseconds)


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
