"""What somebody who looked at a database has to say about it."""

from typing import NamedTuple


class Diagnosis(NamedTuple):
    """One thing that was looked at, how it is, and what to do about it."""

    check: str
    level: str
    """"ok", "warning" or "error"."""
    text: str
    remedy: str = ""


def healthy(check: str, text: str) -> Diagnosis:
    """Return that all is well."""
    return Diagnosis(check, "ok", text)


def diagnosis_of(
    check: str, text: str, *, bad: bool, remedy: str, level: str = "warning"
) -> Diagnosis:
    """Return a fact, with its remedy where it is bad."""
    return Diagnosis(check, level, text, remedy) if bad else healthy(check, text)
