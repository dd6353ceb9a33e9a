"""`duly enqueue`: enqueues one run from the shell."""

from datetime import timedelta
from typing import Any

import click

from duly.api.json_forms import run_document
from duly.app import Duly
from duly.cli.applications import app_with_tasks
from duly.cli.arguments import ArgumentView
from duly.cli.option_types import JsonArguments, duration, instant, json_arguments, tag
from duly.cli.output import print_json, print_line, print_note
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.wait import wait_for
from duly.errors import BadOption
from duly.registry import Definition, Registry
from duly.run import Run
from duly.task import Task


@click.command("enqueue")
@click.argument("task")
@click.argument("arguments", type=json_arguments, default="[]", metavar="[JSON]")
@click.option("--key", help="At most one run per task and key.")
@click.option("--delay", type=duration, help="Start the run after this delay: 90s, 15m, 24h.")
@click.option(
    "--at", type=instant, help="Start the run at this time, an ISO 8601 time with its zone."
)
@click.option("--queue", help="A queue other than the queue of the task.")
@click.option("--priority", type=int, help="Higher priorities start first.")
@click.option(
    "--tag", "tags", type=tag, metavar="NAME=VALUE", multiple=True, help="May be repeated."
)
@click.option("--expires", type=duration, help="Cancel the run if it has not started by then.")
@click.option("--wait", is_flag=True, help="Wait for the end of the run and print its result.")
@click.option("--timeout", type=duration, help="Wait at most this long (with --wait).")
@shared_options
@pass_session
def command(
    session: CommandSession,
    /,
    *,
    task: str,
    arguments: JsonArguments,
    tags: tuple[tuple[str, str], ...],
    wait: bool,
    timeout: timedelta | None,
    **options: Any,  # noqa: ANN401 - the options of Task.using
) -> None:
    """Enqueue one run of TASK and print its id.

    JSON is an object of named arguments, {"order_id": 1}, or an array of positional ones, [1, 2];
    "-" reads it from stdin. Write values that JSON does not have in their stored form, such as
    {"$date": "2030-01-31"}. TASK is a full name, or its last part if only one task has it.
    """
    if timeout is not None and not wait:
        message = "--timeout needs --wait"
        raise click.UsageError(message)
    app = app_with_tasks(session, purpose="enqueue")
    definition = find_task(app.registry, task)
    args, kwargs = definition.codec.from_json(*arguments)
    bound = Task[..., Any](app, definition).using(tags=dict(tags), **options)
    run = bound.enqueue(*args, **kwargs)
    if not wait:
        _print_accepted(app, session, run)
        return
    _wait(app, session, run, timeout)


def find_task(registry: Registry, name: str) -> Definition:
    """Return a task by its name, or by the last part of its name if that is unique."""
    if registry.find(name) is None:
        names = {known.name for known in registry.definitions()}
        endings = sorted(known for known in names if known.partition(":")[2] == name)
        if len(endings) > 1:
            message = f"{name!r} may mean {' or '.join(endings)}; write it in full"
            raise BadOption(message)
        if endings:
            return registry.get(endings[0])
    return registry.get(name)


def _print_accepted(app: Duly, session: CommandSession, run: Run[Any]) -> None:
    if session.as_json:
        _print_document(app, session, run)
        return
    print_line(run.id)
    if not run.new and not session.quiet:
        print_note("This key already has a run; nothing new was enqueued.")


def _wait(app: Duly, session: CommandSession, run: Run[Any], timeout: timedelta | None) -> None:
    if not session.as_json and not session.quiet:
        _print_accepted(app, session, run)
    error = wait_for(run, session, None if timeout is None else timeout.total_seconds())
    if session.as_json:
        _print_document(app, session, run)
    elif error is None:
        print_line(ArgumentView(app, session, show=False).result_text(run.record))
    if error is not None:
        raise error


def _print_document(app: Duly, session: CommandSession, run: Run[Any]) -> None:
    view = ArgumentView(app, session, show=False)
    print_json({"run": run_document(run.record, view.calls), "new": run.new})
