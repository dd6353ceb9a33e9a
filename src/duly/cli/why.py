"""`duly why`: prints the reason that a run is not running, in one sentence."""

import click

from duly.cli.applications import app_of
from duly.cli.output import print_json, print_line
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.core.states import FINAL


@click.command("why")
@click.argument("run_id", metavar="ID")
@shared_options
@pass_session
def command(session: CommandSession, /, *, run_id: str) -> None:
    """Show why a run is not running, and what helps."""
    run = app_of(session).runs.get(run_id)
    reason = run.why()
    if session.as_json:
        found = {"id": run.id, "state": run.record.state, "queue": run.record.queue}
        print_json(found | {"task": run.record.task} | reason._asdict())
    elif session.quiet:
        print_line(reason.cause)
    else:
        stands = "" if run.record.state in FINAL else f" is {run.record.state}"
        print_line(f"Run {run.id} ({run.record.task}){stands}: {reason}.")
