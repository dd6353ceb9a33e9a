"""What somebody who looked at a database has to say about it."""

from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at, how it is, and what to do about it."""

    check: str
    level: str
    """"ok", "warning" or "error"."""
    text: str
    remedy: str = ""


def good(check: str, text: str) -> Finding:
    """Return that all is well."""
    return Finding(check, "ok", text)


def judged(check: str, text: str, *, bad: bool, remedy: str, level: str = "warning") -> Finding:
    """Return a fact, with its remedy where it is bad."""
    return Finding(check, level, text, remedy) if bad else good(check, text)
