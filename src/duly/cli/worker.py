"""`duly worker`: the production worker. The application is imported by its children alone."""

import logging
import os
from contextlib import closing

import click

from duly.cli.output import print_note
from duly.cli.session import Session, pass_session, worker_options
from duly.events import Bus
from duly.limits import BEAT_SECONDS, GRACE_SECONDS, LEASE_SECONDS
from duly.observe.logs import log_event
from duly.runtime.loading import parse_reference
from duly.settings import WorkerSettings, parse_queues
from duly.store.opening import open_store

LOG_LEVEL = "DULY_LOG_LEVEL"


@click.command("worker")
@click.argument("reference", required=False, metavar="[APP]")
@click.option(
    "-c", "--concurrency", type=int, default=10, show_default=True, help="Threads for def tasks."
)
@click.option(
    "--async-limit", type=int, default=200, show_default=True, help="async def tasks at once."
)
@click.option("-q", "--queues", help="Only these, each with its limit: mail:20,default.")
@click.option(
    "--processes", type=click.IntRange(1), default=1, show_default=True, help="Worker processes."
)
@click.option(
    "--lease",
    type=float,
    default=LEASE_SECONDS,
    show_default=True,
    help="Seconds of silence after which others may take over.",
)
@click.option(
    "--beat", type=float, default=BEAT_SECONDS, show_default=True, help="Seconds between beats."
)
@click.option(
    "--grace",
    type=float,
    default=GRACE_SECONDS,
    show_default=True,
    help="Seconds that bodies have to end after SIGTERM.",
)
@click.option("--drain", is_flag=True, help="End when nothing is left to do.")
@worker_options
@click.option("--quiet", "silent", is_flag=True, help="Print warnings and errors only.")
@pass_session
def command(
    session: Session,
    /,
    *,
    reference: str | None,
    concurrency: int,
    async_limit: int,
    queues: str | None,
    processes: int,
    lease: float,
    beat: float,
    grace: float,
    drain: bool,
    silent: bool,
) -> None:
    """Run the tasks of APP (module:attribute) until SIGTERM or Ctrl-C.

    A second signal ends everything at once.
    """
    app = reference or session.app_reference
    if app is None:
        message = "name the application: duly worker module:attribute, or set DULY_APP"
        raise click.UsageError(message)
    parse_reference(app)
    settings = WorkerSettings(
        concurrency=concurrency,
        async_limit=async_limit,
        queues=parse_queues(queues),
        lease=lease,
        beat=beat,
        grace=grace,
    )
    from duly.runtime import keeper, probe  # noqa: PLC0415 - help and usage errors need none of it

    url = session.url or probe.find_url(app)
    if isinstance(url, int):
        raise click.exceptions.Exit(url)
    with closing(open_store(url)) as store:
        shown_url = store.shown_url
        notices = store.notices
    quiet = silent or session.quiet
    if not quiet:
        print_note(f"duly worker: {app} on {shown_url}")
    for notice in notices:
        print_note(f"Warning: {notice}")
    _set_up_logging("DEBUG" if session.verbose else "WARNING" if quiet else None)
    bus = Bus()
    bus.subscribe(log_event)
    raise click.exceptions.Exit(
        keeper.run(app, url, settings, processes=processes, drain=drain, bus=bus)
    )


def _set_up_logging(level: str | None) -> None:
    """Log as the worker processes do, which read the level from the same variable."""
    if level is not None:
        os.environ[LOG_LEVEL] = level
    logging.basicConfig(
        level=os.environ.get(LOG_LEVEL, "INFO"), format="%(asctime)s %(levelname)s %(message)s"
    )
