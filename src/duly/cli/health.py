"""`duly health`: one check for probes and monitors, with its result as exit status."""

from datetime import timedelta

import click

from duly.api.doctor import health_problems
from duly.cli.applications import app_of
from duly.cli.failures import FAILURE
from duly.cli.option_types import duration
from duly.cli.output import print_json, print_line
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.limits import COUNT_CAP


@click.command("health")
@click.option("--max-age", type=duration, help="Fail if a run has been ready for longer: 60s, 5m.")
@click.option(
    "--max-depth",
    type=click.IntRange(0, COUNT_CAP),
    help="Fail if a queue has more ready runs; more than 10,000 are not counted: use --max-age.",
)
@click.option("--no-worker", is_flag=True, help="Do not require a live worker.")
@shared_options
@pass_session
def command(
    session: CommandSession, /, *, max_age: timedelta | None, max_depth: int | None, no_worker: bool
) -> None:
    """Check that the store answers, a worker is live, and runs make progress.

    A live worker makes no progress if it is idle while a run that it serves has been ready for a
    minute. The command watches such a worker for 7 seconds before it reports the worker. Ends with
    status 0 if all is well, 1 if not, and 75 if the database is unavailable.
    """
    store = app_of(session).store
    problems = health_problems(
        store, max_age=max_age, max_depth=max_depth, needs_worker=not no_worker
    )
    if session.as_json:
        print_json({"ok": not problems, "store": store.shown_url, "problems": problems})
    elif not session.quiet:
        for line in problems or [f"ok: {store.shown_url}"]:
            print_line(line)
    if problems:
        raise click.exceptions.Exit(FAILURE)
