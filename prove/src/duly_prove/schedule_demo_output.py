"""`duly demo --schedules`: its introduction, and its table of results."""

from rich.console import Console

from duly_prove.demo_tables import NO_FAULT, CountLine, environment_line, tabulate
from duly_prove.schedule_demo import (
    KINDS,
    PROCESSES,
    TREES,
    InstantCounts,
    ScheduleDemoResult,
    total,
)


def introduce(console: Console) -> None:
    """Print what will happen."""
    count = sum(len(kind.when) for kind in KINDS)
    console.print(
        f"{count} schedules, most of them due every second, and {TREES} supervisors with "
        f"{PROCESSES} workers each. There is no scheduler process: every worker fires due "
        "schedules. A worker is killed with kill -9 about every second.",
        soft_wrap=not console.is_terminal,
    )


def show(console: Console, result: ScheduleDemoResult) -> None:
    """Print what became of the due instants."""
    lines: list[CountLine[InstantCounts]] = [
        CountLine("schedules", lambda row: row.schedules),
        CountLine("due instants", lambda row: row.due),
        CountLine("fired", lambda row: row.fired),
        CountLine("ran", lambda row: row.ran, "green"),
        CountLine("missed", lambda row: row.missed, "red", NO_FAULT),
        CountLine("doubled", lambda row: row.doubled, "red", NO_FAULT),
    ]
    strikes = {"kill -9": result.kills, "runs taken over after a kill": result.attempts_lost}
    console.print(tabulate("runs", (*result.rows, total(result.rows)), lines, strikes))
    console.print(
        environment_line(result.database, result.seconds, result.seed),
        soft_wrap=not console.is_terminal,
    )
    if not result.holds:
        console.print("[bold red]Instants were missed or ran twice: this is a bug in duly.[/]")
