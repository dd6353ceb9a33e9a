"""The table that ends every demo: counts for each kind of work and in total."""

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from rich.table import Table
from rich.text import Text

NO_FAULT = "bold green"


class KindCounts(Protocol):
    """The counts of one kind of work."""

    @property
    def kind(self) -> str: ...


Row = TypeVar("Row", bound=KindCounts)


class CountLine(NamedTuple, Generic[Row]):
    """One line of the table: a number from every row, and its style."""

    title: str
    value: Callable[[Row], int]
    style: str = ""
    style_of_zero: str = "dim"
    is_shown_empty: bool = True


def tabulate(
    what: str, rows: Sequence[Row], lines: Sequence[CountLine[Row]], strikes: Mapping[str, int]
) -> Table:
    """Return a table with the rows as columns, the last being the total, and the faults below."""
    table = Table(
        title=f"Counted from what the {what} did, in a ledger separate from duly's tables",
        title_justify="left",
        title_style="",
    )
    table.add_column("")
    for row in rows:
        table.add_column(row.kind, justify="right", style="bold" if row is rows[-1] else "")
    for line in lines:
        numbers = [line.value(row) for row in rows]
        if any(numbers) or line.is_shown_empty:
            styles = [line.style if number else line.style_of_zero for number in numbers]
            cells = [Text(f"{n:,}", style=style) for n, style in zip(numbers, styles, strict=True)]
            table.add_row(line.title, *cells)
    table.add_section()
    for title, number in strikes.items():
        table.add_row(title, *[""] * (len(rows) - 1), f"{number:,}")
    return table


def environment_line(database: Mapping[str, str], seconds: float, seed: int) -> str:
    """Return a line with the database, the duration and the seed to repeat it."""
    name = "SQLite" if database["kind"] == "sqlite" else "PostgreSQL"
    return f"{name} {database['version']} ({database['journal']}), {seconds} s, seed {seed}"
