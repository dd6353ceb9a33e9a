"""The filter bar: `task:shop:send state:failed tag:tenant=7 args.order_id:42 since:24h`.

The address of a page contains its filter as text. A value with blanks or quotes is written as a
JSON string: `tag:"name=two words"`.
"""

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from duly.core.amounts import bounded_microseconds, seconds_of
from duly.core.key import check_storable
from duly.core.record import RunRecord
from duly.core.states import State, stored_tags
from duly.core.suggestions import nearest
from duly.errors import BadOption, DulyError
from duly.limits import FILTER_CHARACTERS, FILTER_TERMS, PAGE_DEFAULT, SCAN_RUNS
from duly.store.reads import RunFilter

QUALIFIERS = ("task", "queue", "state", "tag", "key", "args.", "error", "since", "id")
_ONCE = frozenset({"task", "queue", "fingerprint", "since", "key", "error"})
STATES = tuple(state.value for state in State)
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_TERM = re.compile(rf'([a-z]+(?:\.[^:\s"]+)?):({_QUOTED}|\S+)|({_QUOTED}|\S+)', re.DOTALL)
_STRING = re.compile(_QUOTED, re.DOTALL)
_PLAIN_TERM = re.compile(r'[^\s"\\]*')
"""A value that needs no quotes in a filter."""
_RUN_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Search(NamedTuple):
    """A parsed filter, with hints for the parts that were not understood."""

    text: str
    which: RunFilter
    key: str | None = None
    run_id: str | None = None
    arguments: tuple[tuple[tuple[str, ...], str], ...] = ()
    """Paths in the arguments, and the values that must be there."""
    error: str | None = None
    hints: tuple[str, ...] = ()

    @property
    def looks_inside(self) -> bool:
        """Whether each run must be examined to decide if it matches."""
        return bool(self.arguments) or self.error is not None

    def may_fit(self, run: RunRecord) -> bool:
        """Return whether a run may match: its error contains the text.

        Its stored arguments are not read, because the time that takes would reveal redacted values.
        """
        return self.error is None or self.error.lower() in (run.error or "").lower()

    def fits(self, arguments: str | None) -> bool:
        """Return whether the redacted arguments match."""
        data = _call_of(arguments)
        return all(_has(data, path, value) for path, value in self.arguments)

    def selects(self, run: RunRecord) -> bool:
        """Return whether a run matches in everything except its arguments."""
        which = self.which
        tags = {} if which.tag is None else stored_tags(run.tags)
        return (
            which.task in {None, run.task}
            and which.queue in {None, run.queue}
            and which.fingerprint in {None, run.fingerprint}
            and (not which.states or run.state in which.states)
            and (which.since is None or run.created_at >= which.since)
            and (which.tag is None or tags.get(which.tag[0]) == which.tag[1])
            and self.may_fit(run)
        )


def read(text: str, now: int, *, cursor: str | None = None) -> Search:
    """Parse a filter. A part that cannot be read becomes a hint, and the filter finds nothing."""
    which = RunFilter(before=_run_id(cursor), limit=PAGE_DEFAULT, scan=SCAN_RUNS)
    found = Search(text.strip(), which)
    if len(found.text) > FILTER_CHARACTERS:
        return _hint(found, f"A filter has at most {FILTER_CHARACTERS:,} characters.")
    terms = list(_TERM.finditer(found.text))
    if len(terms) > FILTER_TERMS:
        return _hint(found, f"A filter has at most {FILTER_TERMS} terms.")
    for match in terms:
        name, value, bare = match.groups()
        try:
            found = _bare(found, _unquoted(bare)) if bare else _with(found, name, value, now)
        except DulyError as error:
            found = _hint(found, str(error))
    return found


def term(name: str, value: str) -> str:
    """Return a term that finds this value, whatever characters it contains."""
    return f"{name}:{value if value and _PLAIN_TERM.fullmatch(value) else _quoted(value)}"


def tag_term(name: str, value: str) -> str:
    """Return a term that finds the runs with this tag."""
    if "=" not in name and _PLAIN_TERM.fullmatch(name + value):
        return f"tag:{name}={value}"
    # An equals sign in the name must not be read as the separator.
    escaped = _quoted(name).replace("=", r"\u003d")
    return f"tag:{escaped[:-1]}={_quoted(value)[1:]}"


def with_term(text: str, name: str, value: str | None) -> str:
    """Return a filter with this value for a name, or without the name, and otherwise unchanged."""
    others: list[str] = []
    if len(text) <= FILTER_CHARACTERS:
        others = [match[0] for match in _TERM.finditer(text) if match[1] != name]
    return " ".join(others if value is None else [term(name, value), *others])


def _with(found: Search, name: str, written: str, now: int) -> Search:
    which = found.which
    if name == "tag":
        return _with_tag(found, written)
    value = _unquoted(written)
    check_storable(name, value)
    if name in _ONCE and getattr(found if name in {"key", "error"} else which, name) is not None:
        return _given_twice(found, name)
    match name:
        case "task":
            return found._replace(which=which._replace(task=value))
        case "queue":
            return found._replace(which=which._replace(queue=value))
        case "fingerprint":
            return found._replace(which=which._replace(fingerprint=value))
        case "state":
            wanted = tuple(part for part in value.split(",") if part)
            unknown = [part for part in wanted if part not in STATES]
            if unknown or not wanted:
                return _hint(found, _no_state(unknown[0] if unknown else value))
            return found._replace(which=which._replace(states=which.states + wanted))
        case "key":
            return found._replace(key=value)
        case "id":
            return _bare(found, value)
        case "error":
            return found._replace(error=value)
        case "since":
            begin = now - bounded_microseconds(seconds_of(value))
            return found._replace(which=which._replace(since=begin))
    if name.startswith("args."):
        path = tuple(name.removeprefix("args.").split("."))
        return found._replace(arguments=(*found.arguments, (path, value)))
    near = nearest(name, QUALIFIERS)
    meant = "" if near is None else f" did you mean {near}:{written}?"
    return _hint(
        found, f"There is no filter {name}:;{meant} The filters are {', '.join(QUALIFIERS)}."
    )


def _no_state(name: str) -> str:
    near = nearest(name, STATES)
    meant = "" if near is None else f" did you mean state:{near}?"
    return f"There is no state {name};{meant} The states are {', '.join(STATES)}."


def _with_tag(found: Search, written: str) -> Search:
    if found.which.tag is not None:
        return _given_twice(found, "tag")
    _unquoted(written)  # Raises if the text cannot be read.
    name, equals, value = written.partition("=")
    if not equals:
        return _hint(found, f"A tag is written tag:name=value, not tag:{written}.")
    if written.startswith('"'):
        name, value = _unquoted(f'{name}"'), _unquoted(f'"{value}')
    for text in (name, value):
        check_storable("tag", text)
    return found._replace(which=found.which._replace(tag=(name, value)))


def _given_twice(found: Search, name: str) -> Search:
    # Using only one of them would find more runs than intended.
    return _hint(found, f"A filter can have {name}: only once.")


def _bare(found: Search, word: str) -> Search:
    if found.run_id is not None:
        return _given_twice(found, "id")
    if _run_id(word):
        return found._replace(run_id=word)
    return _hint(
        found, f"{word} is not a run id. Filters have names, such as task:, state: or error:{word}."
    )


def _hint(found: Search, text: str) -> Search:
    return found._replace(hints=(*found.hints, text))


def _quoted(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


def _unquoted(written: str) -> str:
    if not written.startswith('"'):
        return written
    try:
        if _STRING.fullmatch(written):
            return str(json.loads(written, strict=False))
    except ValueError:
        pass
    raise BadOption(
        f'{written} is not valid: a quoted value ends with a quote, and uses \\" and \\\\ for '
        "quotes and backslashes."
    )


def _run_id(text: str | None) -> str | None:
    return text if text is not None and _RUN_ID.fullmatch(text) else None


def _call_of(arguments: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return stored arguments by name and position."""
    try:
        data = json.loads(arguments or "null")
    except (ValueError, RecursionError):
        return _NOTHING
    if isinstance(data, list) and len(data) == 2 and isinstance(data[1], dict):  # noqa: PLR2004
        # Positional arguments are found by their position, named ones by their name.
        positional = data[0] if isinstance(data[0], list) else []
        return {str(place): item for place, item in enumerate(positional)} | data[1]
    return data


def _has(data: Any, path: Iterable[str], value: str) -> bool:  # noqa: ANN401 - any JSON value
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
