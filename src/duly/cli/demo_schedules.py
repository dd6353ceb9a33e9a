"""`duly demo --schedules`: what it says before, and the table of what came of it."""

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from duly.prove.schedule_demo import KINDS, PROCESSES, TREES, Result, Row, total

_FAULTS = {"missed", "doubled"}


def introduce(console: Console) -> None:
    """Say what will happen."""
    count = sum(len(kind.when) for kind in KINDS)
    console.print(
        f"{count} schedules, most of them due every second, and {TREES} keepers with {PROCESSES} "
        f"workers each. There is no scheduler process: every worker fires what is due. About every "
        f"second one of them gets kill -9.",
        soft_wrap=not console.is_terminal,
    )


def show(console: Console, result: Result) -> None:
    """Show what became of the instants."""
    rows = (*result.rows, total(result.rows))
    table = Table(
        title="Counted by what the runs did, in a ledger apart from duly's tables",
        title_justify="left",
        title_style="",
    )
    table.add_column("")
    for row in rows:
        table.add_column(row.kind, justify="right", style="bold" if row is rows[-1] else "")
    lines: list[tuple[str, Callable[[Row], int], str]] = [
        ("schedules", lambda row: row.schedules, ""),
        ("due instants", lambda row: row.due, ""),
        ("fired", lambda row: row.fired, ""),
        ("ran", lambda row: row.ran, "green"),
        ("missed", lambda row: row.missed, "red"),
        ("doubled", lambda row: row.doubled, "red"),
    ]
    for title, value, style in lines:
        of_zero = "bold green" if title in _FAULTS else "dim"
        cells = [Text(f"{n:,}", style=style if n else of_zero) for n in map(value, rows)]
        table.add_row(title, *cells)
    table.add_section()
    table.add_row("kill -9", *[""] * len(result.rows), f"{result.kills:,}")
    lost = f"{result.attempts_lost:,}"
    table.add_row("runs taken over after one", *[""] * len(result.rows), lost)
    console.print(table)
    behind = result.database
    name = "SQLite" if behind["kind"] == "sqlite" else "PostgreSQL"
    where = f"{name} {behind['version']} ({behind['journal']})"
    console.print(
        f"{where}, {result.seconds} s, seed {result.seed}", soft_wrap=not console.is_terminal
    )
    if not result.holds:
        console.print("[bold red]Instants were missed or ran twice: this is a bug in duly.[/]")
