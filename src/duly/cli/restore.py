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
    help="All workers had stopped before the copy was made, and none has run since: park nothing.",
)
@yes_option
@shared_options
@pass_session
def command(
    session: CommandSession, /, *, made: datetime | timedelta | None, nothing_ran: bool, yes: bool
) -> None:
    """Park what was live in a backup and may have run since, instead of running it again.

    Do it after the backup was put back and before workers start. Such runs end as interrupted, and
    wait with the dead letters for a person to retry or discard them; schedules that came due are
    paused.
    """
    if (made is None) != nothing_ran:
        raise click.UsageError("give one of --since and --nothing-ran")
    app = app_of(session)
    made_at = instant_since(app.store, made) or BEFORE_EVERYTHING
    if not yes and not nothing_ran:
        when, where = made_at.strftime("%F %T %Z"), app.store.shown_url
        confirm(session, f"End as interrupted what was live in {where} at {when}?")
    aside = end_restored_runs(app, made_at)
    if session.as_json:
        print_json(aside._asdict())
    elif nothing_ran:
        print_line(f"Workers may start on {app.store.shown_url}.")
    elif not session.quiet:
        paused = amount(aside.schedules, "schedule")
        print_line(f"{amount(aside.runs, 'run')} interrupted, {paused} paused.")
        if aside.runs:
            print_line("Look at each: duly dead list, then duly dead retry or discard.")
        if aside.schedules:
            print_line("Resume each when its instants are looked at: duly schedules resume NAME.")
        if aside.newer:
            print_line(
                f"{aside.newer:,} runs were made after that and are left alone. If they were in "
                f"the backup, it was made later: do this again with that --since."
            )
