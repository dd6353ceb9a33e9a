"""Reads the SQL files: `-- :name x` begins a statement, `:rows(n)` stands for many rows.

Text that several statements of a file share is a part: `-- :part x`, before the first statement.
The statements, and later parts, include it as `:part(x)`. Statements of other files of the same
database include it as `:part(file.x)`.

In SQLite, one statement cannot change several tables. So a statement there may be a script: several
statements with the same parameters, separated by `-- :then`. The script's answer is the answer of
the statement with `-- :answer`, or else of the last one. If a statement with `-- :stop-if-none`
changes or returns no row, the script ends with the answer of that statement. The columns of the row
of a statement with `-- :bind` are parameters of the statements after it.
"""

import re
from collections.abc import Callable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import NamedTuple

SQL_FOLDER = Path(__file__).parent / "sql"
"""The statements of both databases, side by side. importlib.resources would be slow to import."""

_NAME = re.compile(r"^-- :name (\w+)$", re.MULTILINE)
_PART = re.compile(r"^-- :part (\w+)$", re.MULTILINE)
_PART_HERE = re.compile(r":part\((?:(\w+)\.)?(\w+)\)")
_THEN = "-- :then\n"
_ANSWER, _BIND, _STOP_IF_NONE = "-- :answer\n", "-- :bind\n", "-- :stop-if-none\n"
_ROWS = re.compile(r":rows\((\d+)\)")


class ScriptPart(NamedTuple):
    """One statement of a script."""

    sql: str
    is_answer: bool
    stops_if_none: bool
    binds_row: bool


class Statements:
    """The statements of one SQL file, by name."""

    def __init__(self, text: str, load_sibling: Callable[[str], "Statements"]) -> None:
        self._file = text
        self._load_sibling = load_sibling
        self._expanded: dict[tuple[str, int], str] = {}

    @cached_property
    def _texts(self) -> dict[str, str]:
        # Parsed at the first use, since few processes use the statements of every file.
        _, *statements = _NAME.split(self._file)
        return {
            name: self._with_parts(body, self._parts) for name, body in _bodies(statements).items()
        }

    @cached_property
    def _parts(self) -> dict[str, str]:
        head = _NAME.split(self._file)[0]
        parts: dict[str, str] = {}
        for name, body in _bodies(_PART.split(head)[1:]).items():
            parts[name] = self._with_parts(body, parts)
        return parts

    def _with_parts(self, body: str, parts: dict[str, str]) -> str:
        def part_for(place: re.Match[str]) -> str:
            file, name = place.groups()
            return (parts if file is None else self._load_sibling(file)._parts)[name]  # noqa: SLF001 - of this class

        return _PART_HERE.sub(part_for, body)

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

    def script(self, name: str) -> tuple[ScriptPart, ...]:
        """Return the parts of a script. A plain statement is a script of one part."""
        texts = self._texts[name].split(_THEN)
        has_answer = any(_ANSWER in text for text in texts)
        return tuple(
            ScriptPart(
                text.replace(_ANSWER, "").replace(_BIND, "").replace(_STOP_IF_NONE, "").strip(),
                is_answer=_ANSWER in text or (not has_answer and number == len(texts)),
                stops_if_none=_STOP_IF_NONE in text,
                binds_row=_BIND in text,
            )
            for number, text in enumerate(texts, 1)
        )

    def for_rows(self, name: str, count: int) -> str:
        """Return the statement with its `:rows(n)` written out `count` times."""
        found = self._expanded.get((name, count))
        if found is None:
            found = _ROWS.sub(
                lambda match: ", ".join([f"({', '.join('?' * int(match[1]))})"] * count),
                self._texts[name],
            )
            self._expanded[name, count] = found
        return found


@cache
def load(dialect: str, file_name: str, folder: Path = SQL_FOLDER) -> Statements:
    """Return the statements of the file `<file_name>.<dialect>.sql`."""
    text = (folder / f"{file_name}.{dialect}.sql").read_text()
    return Statements(text, partial(load, dialect, folder=folder))


def _bodies(split: list[str]) -> dict[str, str]:
    return {
        name: _without_comments(body) for name, body in zip(split[::2], split[1::2], strict=True)
    }


def _without_comments(text: str) -> str:
    lines = (line for line in text.strip().splitlines() if not _is_comment(line))
    return "\n".join(lines).strip().rstrip(";")


def _is_comment(line: str) -> bool:
    # The marker lines of scripts are kept, since they are parsed later.
    return line.lstrip().startswith("--") and not line.startswith("-- :")
