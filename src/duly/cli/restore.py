"""`duly restore`: after a backup was restored, parks runs that may have run since."""

from datetime import UTC, datetime, timedelta

import click

from duly.api.restore import end_restored_runs
from duly.cli.applications import app_of
from duly.cli.option_types import instant_since, since
from duly.cli.output import print_json, print_line
from duly.cli.prompt import confirm, yes_option
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.core.amounts import amount

BEFORE_EVERYTHING = datetime.fromtimestamp(0, UTC)


@click.command("restore")
@click.option(
    "--since",
    "made",
    type=since,
    help="When the backup was made: 2030-01-31T08:00Z, or how long ago: 6h.",
)
@click.option(
    "--nothing-ran",
    is_flag=True,
    help=(
        "All workers had stopped before the backup was made and none has run since: interrupt "
        "nothing."
    ),
)
@yes_option
@shared_options
@pass_session
def command(
    session: CommandSession, /, *, made: datetime | timedelta | None, nothing_ran: bool, yes: bool
) -> None:
    """Interrupt the live runs of a restored backup that may have run since.

    Otherwise workers would run them again. Run this command after you restore the backup and before
    workers start. The runs end as interrupted, and wait with the dead letters for an operator to
    retry or discard them; schedules that came due are paused.
    """
    if (made is None) != nothing_ran:
        raise click.UsageError(
            "pass either --since with the time of the backup, or --nothing-ran if no task ran since"
        )
    app = app_of(session)
    made_at = instant_since(app.store, made) or BEFORE_EVERYTHING
    if not yes and not nothing_ran:
        when, where = made_at.strftime("%F %T %Z"), app.store.shown_url
        confirm(session, f"Interrupt the runs that were live in {where} at {when}?")
    aside = end_restored_runs(app, made_at)
    if session.as_json:
        print_json(aside._asdict())
    elif nothing_ran:
        print_line(f"Workers may start on {app.store.shown_url}.")
    elif not session.quiet:
        paused = amount(aside.schedules, "schedule")
        print_line(f"{amount(aside.runs, 'run')} interrupted, {paused} paused.")
        if aside.runs:
            print_line("Check each run: duly dead list, then duly dead retry or discard.")
        if aside.schedules:
            print_line(
                "Resume each schedule after you check its instants: duly schedules resume NAME."
            )
        if aside.newer:
            print_line(
                f"{aside.newer:,} runs were created after that and are unchanged. If they were in "
                "the backup, it was made later: run this command again with that --since."
            )
