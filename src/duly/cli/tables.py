"""Prints escaped tables and fields for users.

This is a separate module because importing rich takes longer than most commands.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from duly.core.escape import clean

_UNLIMITED = 100_000
"""The width of output that is not a terminal, so that programs read uncut values."""

_NARROWEST_TABLE = 60
"""On a narrower terminal lines wrap, since cut ids could not be copied."""
_GAP = 2
_NARROWEST = 6

_STYLES = {
    "queued": "cyan",
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "interrupted": "magenta",
    "cancelled": "yellow",
    "live": "green",
    "dead": "red",
    "paused": "yellow",
}


class Column(NamedTuple):
    """A column of a list. It is omitted on terminals narrower than `from_width`."""

    title: str
    from_width: int = 0
    whole: bool = False
    """Whether the column is never shortened, as for ids that users copy."""
    right: bool = False


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print rows as a table that fits the terminal."""
    console = _console()
    kept = [place for place, column in enumerate(columns) if console.width >= column.from_width]
    cells = [[_cell(row[place]) for place in kept] for row in rows]
    shown = [columns[place] for place in kept]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, width in zip(shown, _widths(shown, cells, console.width), strict=True):
        table.add_column(
            column.title,
            no_wrap=True,
            overflow="ellipsis",
            width=width,
            justify="right" if column.right else "left",
        )
    for row in cells:
        table.add_row(*row)
    console.print(table, no_wrap=True, crop=False)


def print_fields(fields: Iterable[tuple[str, str]]) -> None:
    """Print named values, one per line, without empty ones."""
    console = _console()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in fields:
        if value:
            grid.add_row(name, _cell(value))
    console.print(grid)


def print_heading(text: str) -> None:
    """Print the title of a part."""
    console = _console()
    console.print()
    console.print(Text(clean(text), style="bold"))


def stderr_console() -> Console | None:
    """Return the console for progress bars, or None if stderr is not a terminal."""
    console = Console(stderr=True)
    return console if console.is_terminal else None


def _console() -> Console:
    console = Console(highlight=False, emoji=False, markup=False)
    is_read_by_people = console.is_terminal and sys.stdout.isatty()
    console.width = max(console.width, _NARROWEST_TABLE) if is_read_by_people else _UNLIMITED
    return console


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[Text]], room: int) -> list[int]:
    """Return the column widths. Whole columns get their full width, and others share the rest."""
    widths = [
        max([len(column.title), *(row[place].cell_len for row in rows)])
        for place, column in enumerate(columns)
    ]
    left = room - _GAP * len(columns)
    left -= sum(width for width, column in zip(widths, columns, strict=True) if column.whole)
    shared = [place for place, column in enumerate(columns) if not column.whole]
    # The narrowest first, so that wider columns get the width that it leaves.
    for taken, place in enumerate(sorted(shared, key=widths.__getitem__)):
        share = left // (len(shared) - taken)
        widths[place] = max(min(widths[place], share), _NARROWEST)
        left -= widths[place]
    return widths


def _cell(text: str) -> Text:
    # Text objects are never parsed as markup.
    return Text(clean(text), style=_STYLES.get(text, ""))
