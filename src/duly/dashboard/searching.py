"""The filter bar: `task:shop:send state:failed tag:tenant=7 args.order_id:42 since:24h`.

A filter lives in the address of its page, as its text.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from duly.clock import MICROSECONDS
from duly.core.key import check_storable
from duly.core.record import RunRecord
from duly.core.states import State
from duly.errors import DulyError
from duly.limits import PAGE_DEFAULT, SCAN_RUNS
from duly.store.protocol import RunFilter

QUALIFIERS = ("task", "queue", "state", "tag", "key", "args.", "error", "since", "id")
STATES = tuple(state.value for state in State)
_TERM = re.compile(r'([a-z]+(?:\.[^:\s"]+)?):("[^"]*"|\S+)|("[^"]*"|\S+)')
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_SINCE = re.compile(r"(\d{1,6})([smhdw])")
_PLAIN_VALUE = re.compile(r"[\w.@-]+")
"""What JSON writes as it is."""
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


class Search(NamedTuple):
    """What a filter asks for, and what could not be understood of it."""

    text: str
    which: RunFilter
    key: str | None = None
    run_id: str | None = None
    arguments: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Paths into the arguments, and the values that are to be there."""
    error: str | None = None
    hints: tuple[str, ...] = ()

    @property
    def looks_inside(self) -> bool:
        """Whether each run has to be looked at to tell if it fits."""
        return bool(self.arguments) or self.error is not None

    def may_fit(self, run: RunRecord) -> bool:
        """Return whether a run is worth a closer look: its error has the text.

        Its stored arguments are not read: the time that takes would tell what is redacted in them.
        """
        return self.error is None or self.error.lower() in (run.error or "").lower()

    def fits(self, arguments: str | None) -> bool:
        """Say whether a run that may fit does, by its arguments as they are shown."""
        return arguments is not None and all(
            (value in arguments or not _PLAIN_VALUE.fullmatch(value))
            and _has(arguments, path, value)
            for path, value in self.arguments
        )


def read(text: str, now: int, *, cursor: str | None = None) -> Search:
    """Read a filter; what is not understood becomes a hint, never an error."""
    which = RunFilter(before=_run_id(cursor), limit=PAGE_DEFAULT, scan=SCAN_RUNS)
    found = Search(text.strip(), which)
    for match in _TERM.finditer(found.text):
        name, value, bare = match.groups()
        try:
            found = (
                _bare(found, bare.strip('"')) if bare else _with(found, name, _unquoted(value), now)
            )
        except DulyError as error:
            found = _hint(found, str(error))
    return found


def with_state(text: str, state: str | None) -> str:
    """Return a filter that asks for one state, or any, and else for the same."""
    others = [match[0] for match in _TERM.finditer(text) if match[1] != "state"]
    return " ".join(others if state is None else [f"state:{state}", *others])


def _with(found: Search, name: str, value: str, now: int) -> Search:
    check_storable(name, value)
    which = found.which
    match name:
        case "task":
            return found._replace(which=which._replace(task=value))
        case "queue":
            return found._replace(which=which._replace(queue=value))
        case "fingerprint":
            return found._replace(which=which._replace(fingerprint=value))
        case "state":
            wanted = tuple(part for part in value.split(",") if part in STATES)
            if not wanted:
                return _hint(found, f"There is no state {value}; there are {', '.join(STATES)}.")
            return found._replace(which=which._replace(states=which.states + wanted))
        case "tag":
            tag, equals, content = value.partition("=")
            if not equals:
                return _hint(found, f"A tag is written tag:name=value, not tag:{value}.")
            return found._replace(which=which._replace(tag=(tag, content)))
        case "key":
            return found._replace(key=value)
        case "id":
            return _bare(found, value)
        case "error":
            return found._replace(error=value)
        case "since":
            length = _SINCE.fullmatch(value)
            if length is None:
                return _hint(found, f"since: takes 30m, 24h or 7d, not {value}.")
            begin = now - int(length[1]) * _UNITS[length[2]] * MICROSECONDS
            return found._replace(which=which._replace(since=begin))
    if name.startswith("args."):
        path = tuple(name.removeprefix("args.").split("."))
        return found._replace(arguments=(*found.arguments, (path, value)))
    return _hint(found, f"There is no filter {name}:; there are {', '.join(QUALIFIERS)}.")


def _bare(found: Search, word: str) -> Search:
    if _run_id(word):
        return found._replace(run_id=word)
    return _hint(
        found, f"{word} is no run's id. Filters have names, such as task:, state: or error:{word}."
    )


def _hint(found: Search, text: str) -> Search:
    return found._replace(hints=(*found.hints, text))


def _unquoted(value: str) -> str:
    return value.strip('"')


def _run_id(text: str | None) -> str | None:
    return text if text is not None and _RUN_ID.fullmatch(text) else None


def _has(arguments: str, path: Iterable[str], value: str) -> bool:
    try:
        data = json.loads(arguments)
    except (ValueError, RecursionError):
        return False
    if isinstance(data, list) and len(data) == 2 and isinstance(data[1], dict):  # noqa: PLR2004
        # Positional arguments are found by their place, named ones by their name.
        positional = data[0] if isinstance(data[0], list) else []
        data = {str(place): item for place, item in enumerate(positional)} | data[1]
    for step in path:
        data = _inner(data, step)
    return data is not _NOTHING and (data == value or _text(data) == value)


_NOTHING = object()


def _inner(data: Any, step: str) -> Any:  # noqa: ANN401 - any JSON value
    if isinstance(data, dict):
        return data.get(step, _NOTHING)
    if isinstance(data, list) and step.isdecimal() and int(step) < len(data):
        return data[int(step)]
    return _NOTHING


def _text(data: Any) -> str:  # noqa: ANN401 - any JSON value
    return json.dumps(data, ensure_ascii=False)
