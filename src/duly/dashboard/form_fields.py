"""Parses and checks the fields of a form or a confirmation."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from duly.core.amounts import seconds_of
from duly.errors import BadOption


def limit_of(text: str) -> int | None:
    """Return a limit on running runs. None means no limit."""
    if not text:
        return None
    if not text.isdecimal() or len(text) > 6 or not int(text):  # noqa: PLR2004 - a million slots
        raise BadOption("a limit must be a whole number of at least 1, or empty for no limit")
    return int(text)


def instant_of(name: str, text: str) -> datetime:
    """Return an instant. Text without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text)
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadOption(f"{name} must be a date and a time, such as 2030-01-31T08:00") from None


class Reschedule(NamedTuple):
    """The changes that a reschedule asks for. None changes nothing."""

    delay: float | None
    at: datetime | None
    priority: int | None
    queue: str | None


def reschedule_of(given: Mapping[str, str]) -> Reschedule:
    """Return what the fields start, at, priority and queue of a form ask for."""
    start, at = given["start"], given["at"]
    is_delay = start not in {"", "at"}
    if is_delay and at:
        raise BadOption("choose “at the time below”, or leave the time empty")
    try:
        priority = int(given["priority"]) if given["priority"] else None
    except ValueError:
        raise BadOption("a priority must be a whole number, or empty to keep it") from None
    asked = Reschedule(
        delay=seconds_of(start) if is_delay else None,
        at=instant_of("the time", at) if at or start == "at" else None,
        priority=priority,
        queue=given["queue"] or None,
    )
    if asked == Reschedule(None, None, None, None):
        raise BadOption("nothing would change: choose a start, a priority or a queue")
    return asked
