"""`duly worker`: the production worker. Only its child processes import the application."""

import os
from dataclasses import replace
from typing import Any

import click

from duly.cli.output import print_note
from duly.cli.session import CommandSession, pass_session, worker_options
from duly.events import EventBus
from duly.observe.log_queue import LogQueue
from duly.observe.log_setup import FORMAT, set_up_logging
from duly.observe.logs import log_notice, log_start
from duly.settings import load_settings
from duly.store.store_factory import open_store
from duly.worker.app_loader import parse_reference


@click.command("worker")
@click.argument("reference", required=False, metavar="[APP]")
@click.option("-c", "--concurrency", type=int, help="Threads for def tasks; 10.")
@click.option("--async-limit", type=int, help="async def tasks at once; 200.")
@click.option(
    "-I", "--include", help="Also import these modules, which define tasks: shop.mail,shop.billing."
)
@click.option("-q", "--queues", help="Only these queues, each with its limit: mail:20,default.")
@click.option("--exclude-queues", help="Every queue except these: mail,slow.")
@click.option("--processes", type=click.IntRange(1), help="Worker processes; 1.")
@click.option(
    "--lease", type=float, help="Seconds without a heartbeat until other workers may take over; 15."
)
@click.option("--beat", type=float, help="Seconds between heartbeats; 5.")
@click.option(
    "--grace", type=float, help="Seconds that running tasks have to end after SIGTERM; 25."
)
@click.option("--drain", is_flag=True, help="End when no run is due and none is running.")
@click.option(
    "--max-tasks",
    type=click.IntRange(1),
    help="Start this many runs, in all processes together, and end after them.",
)
@worker_options
@click.option("--quiet", "silent", is_flag=True, help="Print warnings and errors only.")
@pass_session
def command(
    session: CommandSession,
    /,
    *,
    reference: str | None,
    drain: bool,
    max_tasks: int | None,
    silent: bool,
    **options: Any,  # noqa: ANN401 - settings by name
) -> None:
    """Run the tasks of APP (module:attribute) until SIGTERM or Ctrl-C.

    A second signal kills running tasks at once. Options that you omit come from the application,
    DULY_… or [tool.duly] in pyproject.toml: see `duly config`.
    """
    app = reference or session.app_reference
    if app is None:
        message = "name the application: duly worker module:attribute, or set DULY_APP"
        raise click.UsageError(message)
    parse_reference(app)
    # Reject invalid settings at once. The child processes read the log format from the environment.
    if session.as_json:
        os.environ[FORMAT] = "json"
    load_settings(**options)
    # Imported here, since help and usage errors do not need it.
    from duly.worker.app_probe import find_settings  # noqa: PLC0415
    from duly.worker.process_lifetime import exit_now  # noqa: PLC0415
    from duly.worker.supervisor import Supervisor  # noqa: PLC0415

    found = find_settings(app)
    if isinstance(found, int):
        raise click.exceptions.Exit(found)
    settings = found.over("option", **options, url=session.url)
    store = open_store(settings.url)
    quiet = silent or session.quiet
    level = "DEBUG" if session.verbose else "WARNING" if quiet else settings.log_level
    set_up_logging(level, settings.log_format)
    if settings.log_format == "json":
        log_start(f"duly worker: {app} on {store.shown_url}")
    elif not quiet:
        print_note(f"duly worker: {app} on {store.shown_url}")
    for notice in store.notices:
        log_notice(notice)
    bus = EventBus(LogQueue())
    chosen = replace(settings.worker(), max_tasks=max_tasks)
    count = settings.processes
    supervisor = Supervisor(store, app, settings.url, chosen, bus, processes=count, drain=drain)
    bus.start_log("supervisor")
    status = supervisor.run()
    if not bus.stop_log("supervisor"):
        exit_now(status)  # The interpreter's own end would wait for the log.
    raise click.exceptions.Exit(status)
