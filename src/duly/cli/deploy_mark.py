"""`duly deploy-mark`: marks the deployment of a version for the dashboard's charts."""

import click

from duly.actor import resolve_actor
from duly.cli.applications import app_of
from duly.cli.output import print_json, print_line
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.run import check_reason
from duly.store.ops.operators import RecordAuditEntry


@click.command("deploy-mark")
@click.argument("version")
@shared_options
@pass_session
def command(session: CommandSession, /, *, version: str) -> None:
    """Mark VERSION as deployed now."""
    op = RecordAuditEntry(resolve_actor(None), "deploy", "deployment", check_reason(version))
    app_of(session, creates=True).store.do(op)
    if session.as_json:
        print_json({"version": version})
    elif not session.quiet:
        print_line(f"Marked the deployment of {version}.")
