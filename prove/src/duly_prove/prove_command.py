"""`duly prove`: the long fault-injection runs, on a separate database."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from duly.cli.output import print_json
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.clock import monotonic
from duly_prove.evidence import SCENARIOS, Evidence, gather
from duly_prove.scratch_storage import ScratchFolder, scratch_url
from duly_prove.trial import ProgressReport, Trial

_PROGRESS_SECONDS = 10.0
_URL = "A PostgreSQL database; by default SQLite in a temporary folder."


@click.command("prove")
@click.option(
    "--scale", type=float, default=1.0, show_default=True, help="Share of the full counts."
)
@click.option(
    "--only", type=click.Choice(list(SCENARIOS)), multiple=True, help="Run only this scenario."
)
@click.option("--sqlite", is_flag=True, help="Use SQLite too, if --url names a database.")
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed that repeats the same random choices.",
)
@click.option("--again", hidden=True, help="The command to print for a replay.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("docs/evidence"),
    show_default=True,
    help="Folder for the evidence.",
)
@partial(shared_options, url=_URL)
@pass_session
def command(
    session: CommandSession,
    /,
    *,
    scale: float,
    only: Sequence[str],
    sqlite: bool,
    seed: int,
    again: str | None,
    out: Path,
) -> None:
    """Inject faults into workers and check what survived.

    The package duly-prove adds this command: pip install ./prove in a checkout of duly.

    Sends SIGKILL, SIGSTOP and SIGTERM to real processes while they work, and writes one document
    for each scenario and database. In the database of --url, each scenario has a schema of its own,
    which is removed afterwards. Exit status 1 if an invariant was broken.
    """
    console = Console(stderr=True, quiet=session.quiet)
    urls = [None, session.url] if sqlite and session.url else [session.url]
    found = []
    for url in urls:
        for name in only or SCENARIOS:
            title = f"{name} on {'SQLite' if url is None else 'PostgreSQL'}"
            with _progress_display(console, title) as report_progress:
                evidence = _prove(name, url, report_progress, scale=scale, seed=seed, again=again)
            _report(console, evidence, evidence.write(out))
            found.append(evidence)
    if session.as_json:
        print_json({"evidence": [evidence.document for evidence in found]})
    raise click.exceptions.Exit(0 if all(evidence.holds for evidence in found) else 1)


def _prove(
    name: str,
    url: str | None,
    report_progress: ProgressReport,
    *,
    scale: float,
    seed: int,
    again: str | None,
) -> Evidence:
    with ScratchFolder() as folder, scratch_url(url, folder.path) as place:
        with Trial(place, folder.path, seed=seed, report_progress=report_progress) as trial:
            found = gather(trial, name, scale, again=again)
        if not found.holds:
            folder.keep()
            found.document["journals"] = str(folder.path)
    return found


@contextmanager
def _progress_display(console: Console, title: str) -> Iterator[ProgressReport]:
    """Show the progress: as a bar on a terminal, as lines elsewhere."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _progress_callback(console, progress, progress.add_task(title), title)


def _progress_callback(
    console: Console, progress: Progress, bar: TaskID, title: str
) -> ProgressReport:
    said_at = monotonic()

    def report_progress(what: str, done: int, total: int) -> None:
        nonlocal said_at
        progress.update(bar, description=f"{title}: {what}", completed=done, total=total)
        if not console.is_terminal and monotonic() - said_at > _PROGRESS_SECONDS:
            said_at = monotonic()
            console.print(f"{title}: {what} {done}/{total}", markup=False, highlight=False)

    return report_progress


def _report(console: Console, found: Evidence, file: Path) -> None:
    document = found.document
    counts, strikes = document["counts"], document["strikes"]
    console.print(
        f"{found.scenario} on {found.database}: {document['verdict']}; "
        f"{strikes['made']} strikes, {counts['enqueued']} runs, {counts['lost']} lost, "
        f"{counts['doubled']} doubled, {counts['stale_writes']} stale writes, "
        f"{counts['instants_due']} instants due, {counts['instants_missed']} missed, "
        f"{counts['extra_firings']} extra, "
        f"{document['measured']['seconds']} s; {file}",
        style="green" if found.holds else "bold red",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if not found.holds:
        for line in document["broken"]:
            console.print(f"  {line}", markup=False, highlight=False)
        kept = document["journals"]
        console.print(f"  records of every process: {kept}", markup=False, highlight=False)
        console.print(f"  again: {found.replay}", markup=False, highlight=False)
