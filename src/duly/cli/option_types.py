"""Parses the values of options and arguments: durations, instants, tags, JSON."""

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Protocol

import click

from duly.core.amounts import DURATION_UNITS, seconds_of
from duly.core.instants import moment
from duly.errors import BadOption


class TimeSource(Protocol):
    """A source of the current time: a store, or else this host."""

    def now(self) -> int: ...


class JsonArguments(NamedTuple):
    """The arguments of a call as parsed JSON."""

    args: list[Any]
    kwargs: dict[str, Any]


def duration(text: str) -> timedelta:
    """Parse `90`, `90s`, `15m`, `24h`, `7d`, `2w`. A plain number means seconds."""
    try:
        return timedelta(seconds=seconds_of(text))
    except BadOption as error:
        raise click.BadParameter(str(error)) from None
    except OverflowError:
        return timedelta.max


def instant(text: str, *, is_utc: bool = False) -> datetime:
    """Parse an ISO 8601 date and time. With `is_utc`, the zone is optional and defaults to UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not an ISO 8601 time, such as 2030-01-31T08:00Z"
        raise click.BadParameter(message) from None
    if found.utcoffset() is None and not is_utc:
        message = f"{text!r} has no time zone; write {found.isoformat()}Z for UTC"
        raise click.BadParameter(message)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def utc_instant(text: str) -> datetime:
    """Parse an ISO 8601 date, or date and time. Without a zone, it is in UTC."""
    return instant(text, is_utc=True)


def since(text: str) -> datetime | timedelta:
    """Parse an instant or a duration before now."""
    return duration(text) if text.endswith(DURATION_UNITS) else instant(text)


def tag(text: str) -> tuple[str, str]:
    """Parse `name=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        message = f"{text!r} is not of the form name=value"
        raise click.BadParameter(message)
    return name, value


def json_arguments(text: str) -> JsonArguments:
    """Parse a JSON object (named arguments) or array (positional ones). `-` reads from stdin."""
    try:
        found = json.loads(sys.stdin.read() if text == "-" else text)
    except (ValueError, RecursionError) as error:
        message = f"not JSON: {error}"
        raise click.BadParameter(message) from None
    match found:
        case dict():
            return JsonArguments([], found)
        case list():
            return JsonArguments(found, {})
    message = 'arguments must be a JSON object {"name": …} or an array […]'
    raise click.BadParameter(message)


def instant_since(clock: TimeSource, given: datetime | timedelta | None) -> datetime | None:
    """Return the instant for `--since`. A duration counts back on the clock of the store."""
    if not isinstance(given, timedelta):
        return given
    now = moment(clock.now())
    try:
        return now - given
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)
