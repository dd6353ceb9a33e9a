"""The results of a health check of a database."""

from typing import NamedTuple


class Diagnosis(NamedTuple):
    """One thing that was checked, its condition, and what to do about it."""

    check: str
    level: str
    """"ok", "warning" or "error"."""
    text: str
    remedy: str = ""


def healthy(check: str, text: str) -> Diagnosis:
    """Return a diagnosis without a problem."""
    return Diagnosis(check, "ok", text)


def diagnosis_of(
    check: str, text: str, *, bad: bool, remedy: str, level: str = "warning"
) -> Diagnosis:
    """Return a diagnosis, with its remedy if there is a problem."""
    return Diagnosis(check, level, text, remedy) if bad else healthy(check, text)
