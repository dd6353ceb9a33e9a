"""`duly demo`: runs orders or schedules, kills workers, and shows a table of the results."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from duly.cli.output import print_json, print_note
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.clock import monotonic
from duly.settings import load_settings
from duly_prove import schedule_demo_output
from duly_prove.demo import (
    LEASE_SECONDS,
    PROCESSES,
    TREES,
    DemoProgress,
    DemoResult,
    OrderCounts,
    ProgressCallback,
    run_demo,
    total,
)
from duly_prove.demo_tables import NO_FAULT, CountLine, environment_line, tabulate
from duly_prove.schedule_demo import ScheduleDemoResult as ScheduleResult
from duly_prove.schedule_demo import run_schedule_demo
from duly_prove.scratch_storage import ScratchFolder, scratch_url

_PROGRESS_SECONDS = 2.0
_URL = "A PostgreSQL database (DULY_URL); by default SQLite in a temporary folder."


@click.command("demo")
@click.option(
    "--schedules", is_flag=True, help="Demonstrate schedules that fire every second, not orders."
)
@click.option("--orders", type=click.IntRange(10, 100_000), default=1_000, show_default=True)
@click.option(
    "--seconds",
    type=click.FloatRange(5, 3_600),
    default=20.0,
    show_default=True,
    help="Approximate duration of the work.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed that repeats the same random choices.",
)
@partial(shared_options, url=_URL)
@pass_session
def command(
    session: CommandSession, /, *, schedules: bool, orders: int, seconds: float, seed: int
) -> None:
    """Watch duly at work while its workers are killed with -9 and frozen.

    The package duly-prove adds this command: pip install ./prove in a checkout of duly.

    Uses SQLite in a temporary folder, or a schema of its own in the PostgreSQL database of --url or
    DULY_URL, and removes everything afterwards. An SQLite file named there is not used. Exit status
    1 if an order was lost or duplicated, or with --schedules if an instant was missed or ran twice.
    """
    console = Console(stderr=session.as_json, highlight=False, emoji=False)
    quiet = session.quiet or session.as_json
    settings = load_settings().over("option", url=session.url)
    if "url" in settings.origins and settings.url.startswith("sqlite:"):
        print_note(f"{settings.url} is not used: the demo uses SQLite in a temporary folder.")
    with ScratchFolder() as folder, scratch_url(settings.url, folder.path) as url:
        result: DemoResult | ScheduleResult
        if schedules:
            if not quiet:
                schedule_demo_output.introduce(console)
            with _progress_display(console, "instants", quiet=quiet, freezes=False) as watch:
                result = run_schedule_demo(url, folder.path, watch, seconds=seconds, seed=seed)
        else:
            if not quiet:
                _introduce(console, orders)
            with _progress_display(console, "orders", quiet=quiet) as watch:
                result = run_demo(
                    url, folder.path, watch, orders=orders, seconds=seconds, seed=seed
                )
        if not result.holds:
            folder.keep()
            print_note(f"The records of every process are in {folder.path}")
    if session.as_json:
        print_json(result.document())
    elif isinstance(result, ScheduleResult):
        schedule_demo_output.show(console, result)
    else:
        _show(console, result)
    raise click.exceptions.Exit(0 if result.holds else 1)


def _introduce(console: Console, orders: int) -> None:
    console.print(
        f"{orders:,} orders, {TREES} supervisors with {PROCESSES} workers each, a lease of "
        f"{LEASE_SECONDS:g} s. A worker is killed with kill -9 about every second. Twice, a "
        "supervisor and its workers are frozen for longer than their lease and then continued.",
        soft_wrap=not console.is_terminal,
    )


@contextmanager
def _progress_display(
    console: Console, what: str, *, quiet: bool, freezes: bool = True
) -> Iterator[ProgressCallback]:
    """Yield a progress callback: a bar on a terminal, lines elsewhere, or nothing."""
    if quiet:
        yield lambda _moment: None
    elif console.is_terminal:
        columns = (
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TextColumn("{task.fields[struck]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, expand=True) as progress:
            bar = progress.add_task("", struck="")

            def watch(moment: DemoProgress) -> None:
                progress.update(
                    bar,
                    description=moment.what,
                    completed=moment.done,
                    total=moment.total,
                    struck=_fault_counts(moment, freezes=freezes),
                )

            yield watch
    else:
        yield _lines(lambda text: console.print(text, soft_wrap=True), what, freezes=freezes)


def _fault_counts(moment: DemoProgress, *, freezes: bool) -> str:
    killed = f"[red]{moment.kills:>2} killed[/]"
    if not freezes:
        return killed
    return f"{killed} [{'cyan' if moment.frozen else 'dim'}]{moment.frozen} frozen[/]"


def _lines(say: Callable[[str], None], what: str, *, freezes: bool) -> ProgressCallback:
    said_at = -_PROGRESS_SECONDS

    def watch(moment: DemoProgress) -> None:
        nonlocal said_at
        if monotonic() - said_at >= _PROGRESS_SECONDS:
            said_at = monotonic()
            frozen = f", {moment.frozen} frozen" if freezes else ""
            say(
                f"{moment.what}: {moment.done}/{moment.total} {what}, {moment.kills} killed{frozen}"
            )

    return watch


def _show(console: Console, result: DemoResult) -> None:
    lines: list[CountLine[OrderCounts]] = [
        CountLine("enqueued", lambda row: row.enqueued),
        CountLine("succeeded", lambda row: row.succeeded, "green"),
        CountLine(
            "interrupted, waiting for an operator",
            lambda row: row.interrupted,
            "magenta",
            is_shown_empty=False,
        ),
        CountLine("dead by the crash limit", lambda row: row.dead, "yellow", is_shown_empty=False),
        CountLine("lost", lambda row: row.lost, "red", NO_FAULT),
        CountLine("duplicated", lambda row: row.duplicated, "red", NO_FAULT),
        CountLine(
            "repeated after a crash, as allowed",
            lambda row: row.again,
            "yellow",
            is_shown_empty=False,
        ),
    ]
    strikes = {
        "kill -9": result.kills,
        "freezes past the lease": result.freezes,
        "frozen workers that recorded nothing": result.zombies,
    }
    console.print(tabulate("orders", (*result.rows, total(result.rows)), lines, strikes))
    for line in _explanations(result):
        console.print(line, soft_wrap=not console.is_terminal)


def _explanations(result: DemoResult) -> Iterator[str]:
    if result.zombies:
        late = result.late_results_refused
        results = "1 late result was" if late == 1 else f"{late} late results were"
        ended = "their tasks were ended before they could report a result"
        how = f"{results} refused, and the other tasks were ended first" if late else ended
        yield (
            f"Frozen workers: {result.zombies} workers were frozen for longer than their lease. "
            f"Other workers took over their {result.taken_over} runs, and the frozen workers "
            f"recorded nothing: {how}."
        )
    if result.interrupted:
        effects = total(result.rows).interrupted_with_effect
        yield (
            f'Interrupted: on_crash="hold" and killed while running, {effects} of them after their '
            "effect; duly does not run them again until an operator decides."
        )
    yield environment_line(result.database, result.seconds, result.seed)
    if not result.holds:
        yield "[bold red]Orders were lost or duplicated: this is a bug in duly.[/]"
