"""Reads the SQL files: `-- :name x` begins a statement, `:rows(n)` stands for many rows.

What several statements of a file have in common stands before the first of them, as `-- :part x`,
and `:part(x)` stands for it.
"""

import re
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path

_NAME = re.compile(r"^-- :name (\w+)$", re.MULTILINE)
_PART = re.compile(r"^-- :part (\w+)$", re.MULTILINE)
_PART_HERE = re.compile(r":part\((\w+)\)")
_ROWS = re.compile(r":rows\((\d+)\)")


class Statements:
    """The named statements of one SQL file, as attributes of a dictionary."""

    def __init__(self, text: str) -> None:
        self._file = text
        self._expanded: dict[tuple[str, int], str] = {}

    @cached_property
    def _texts(self) -> dict[str, str]:
        # Few processes use the statements of every file.
        head, *statements = _NAME.split(self._file)
        parts = _bodies(_PART.split(head)[1:])
        return {
            name: _PART_HERE.sub(lambda part: parts[part[1]], body)
            for name, body in _bodies(statements).items()
        }

    def __getitem__(self, name: str) -> str:
        return self._texts[name]

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
def load(package: str, file_name: str) -> Statements:
    """Return the statements of `sql/<file_name>.sql` beside the given package."""
    return Statements((folder_of(package) / "sql" / f"{file_name}.sql").read_text())


def folder_of(package: str) -> Path:
    """Return where a dialect's files lie; importlib.resources would be slow to import."""
    return Path(str(import_module(package).__file__)).parent


def _bodies(split: list[str]) -> dict[str, str]:
    return {
        name: _without_comments(body) for name, body in zip(split[::2], split[1::2], strict=True)
    }


def _without_comments(text: str) -> str:
    lines = (line for line in text.strip().splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
