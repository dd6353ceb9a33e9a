"""Reads the SQL files: `-- :name x` begins a statement, `:rows(n)` stands for many rows."""

import re
from functools import cache
from importlib import import_module
from pathlib import Path

_NAME = re.compile(r"^-- :name (\w+)$", re.MULTILINE)
_ROWS = re.compile(r":rows\((\d+)\)")


class Statements:
    """The named statements of one SQL file, as attributes of a dictionary."""

    def __init__(self, text: str) -> None:
        parts = _NAME.split(text)
        self._texts = {
            name: _without_comments(body)
            for name, body in zip(parts[1::2], parts[2::2], strict=True)
        }
        self._expanded: dict[tuple[str, int], str] = {}

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


def _without_comments(text: str) -> str:
    lines = (line for line in text.strip().splitlines() if not line.lstrip().startswith("--"))
    return "\n".join(lines).strip().rstrip(";")
