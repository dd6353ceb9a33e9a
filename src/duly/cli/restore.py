"""`duly restore`: after a backup was put back, park what may have run since."""

from datetime import datetime, timedelta

import click

from duly.api.restoring import set_aside
from duly.cli.confirming import confirm, yes_option
from duly.cli.loading import app_of
from duly.cli.output import print_json, print_line
from duly.cli.session import Session, pass_session, shared_options
from duly.cli.values import instant_since, since


@click.command("restore")
@click.option(
    "--since",
    "made",
    type=since,
    required=True,
    help="When the backup was made: 2030-01-31T08:00Z, or how long ago: 6h.",
)
@yes_option
@shared_options
@pass_session
def command(session: Session, /, *, made: datetime | timedelta, yes: bool) -> None:
    """Park what was live in a backup and may have run since, instead of running it again.

    Do it after the backup was put back and before workers start. Such runs end as interrupted, and
    wait with the dead letters for a person to retry or discard them; schedules that came due are
    paused.
    """
    app = app_of(session)
    made_at = instant_since(app.store, made)
    assert made_at is not None  # noqa: S101 - the option is required
    if not yes:
        when, where = made_at.strftime("%F %T %Z"), app.store.shown_url
        confirm(session, f"End as interrupted what was live in {where} at {when}?")
    aside = set_aside(app, made_at)
    if session.as_json:
        print_json(aside._asdict())
    elif not session.quiet:
        print_line(f"{aside.runs:,} runs are interrupted, {aside.schedules:,} schedules paused.")
        if aside.runs:
            print_line("Look at each: duly dead list, then duly dead retry or discard.")
        if aside.schedules:
            print_line("Resume each when its instants are looked at: duly schedules resume NAME.")
        if aside.newer:
            print_line(
                f"{aside.newer:,} runs were made after that and are left alone. If they were in "
                f"the backup, it was made later: do this again with that --since."
            )
