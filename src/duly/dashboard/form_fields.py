"""Parses and checks the fields of a form or a confirmation."""

from datetime import UTC, datetime

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
