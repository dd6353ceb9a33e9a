"""`duly audit`: proves on a live database that nothing was lost, duplicated or forgotten."""

import click

from duly.cli.applications import app_of
from duly.cli.failures import FAILURE
from duly.cli.output import print_json, print_line
from duly.cli.progress import bar
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import print_fields
from duly.limits import PAGE


@click.command("audit")
@shared_options
@pass_session
def command(session: CommandSession) -> None:
    """Check the invariants of every run; workers can keep running.

    Ends with status 1 if the audit found a problem.
    """
    store = app_of(session).store
    with bar(session, "Auditing"):
        count = store.count_runs()
        flaws = list(store.audit(PAGE))
    if session.as_json:
        found = [flaw._asdict() for flaw in flaws]
        print_json(
            {"ok": not flaws, "store": store.shown_url, "runs": count._asdict(), "flaws": found}
        )
    elif flaws:
        for flaw in flaws:
            print_line(f"{flaw.subject} {flaw.text} ({flaw.check}).")
    elif not session.quiet:
        print_fields([("store", store.shown_url)])
        print_fields((name, f"{number:,}") for name, number in count._asdict().items())
        print_line("Every accepted run is live, finished or pruned, and in one place only;")
        print_line("no run is held by two workers, and no claim was settled twice.")
    if flaws:
        raise click.exceptions.Exit(FAILURE)
