"""`duly runs`: list, tail, show, wait, cancel, reschedule, retry, resolve."""

import json
from datetime import datetime, timedelta
from typing import Any

import click

from duly.api.json_forms import run_document
from duly.app import Duly
from duly.cli.applications import app_of
from duly.cli.arguments import ArgumentView
from duly.cli.failures import FAILURE
from duly.cli.filters import Filters, page_options, run_filters
from duly.cli.list_group import ListGroup
from duly.cli.option_types import JsonArguments, duration, instant, json_arguments
from duly.cli.output import print_json, print_line, print_note
from duly.cli.run_table import print_runs
from duly.cli.run_view import print_run, show_args
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tail import changes, print_change
from duly.cli.wait import wait_for
from duly.clock import monotonic
from duly.core.states import State
from duly.core.suggestions import similar
from duly.core.time_text import shown_instant
from duly.limits import PAGE
from duly.run import Run

_MEANT = 3
"""The number of similar tasks that are named."""


@click.group("runs", cls=ListGroup)
@shared_options
def command() -> None:
    """List, follow, show, wait for, cancel, reschedule and retry runs."""


@command.command("list")
@run_filters
@page_options
@show_args
@shared_options
@pass_session
def list_runs(
    session: CommandSession,
    /,
    *,
    limit: int,
    cursor: str | None,
    show_args: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """List runs, newest first."""
    app = app_of(session)
    which = Filters(**filters).resolve(app.store)
    page = app.runs.page(which, limit=limit, cursor=cursor)
    view = ArgumentView(app, session, show=show_args)
    none = f"No run matches in {app.store.shown_url}."
    if which.task is not None and not page:
        none += _suggestion(app, str(which.task))
    print_runs(app, session, page, view, none=none)


@command.command("tail")
@run_filters
@click.option(
    "-n",
    "first",
    type=click.IntRange(0, PAGE),
    default=10,
    show_default=True,
    help="Start this far back.",
)
@click.option("--for", "length", type=duration, help="End after this long: 90s, 15m.")
@show_args
@shared_options
@pass_session
def tail_runs(
    session: CommandSession,
    /,
    *,
    first: int,
    length: timedelta | None,
    show_args: bool,
    **filters: Any,  # noqa: ANN401 - those of Filters
) -> None:
    """Follow runs: print the newest runs, then a line for each change.

    Continues until Ctrl-C. With --json each line is a separate document.
    """
    app = app_of(session)
    which = Filters(**filters).resolve(app.store)
    view = ArgumentView(app, session, show=show_args)
    until = None if length is None else monotonic() + length.total_seconds()
    for record in changes(app, which, first=first, until=until):
        print_change(app, session, record, view)


@command.command("show")
@click.argument("run_id", metavar="ID")
@show_args
@shared_options
@pass_session
def show_run(session: CommandSession, /, *, run_id: str, show_args: bool) -> None:
    """Show one run: its record, attempts, steps, logs and operator actions."""
    print_run(app_of(session), session, run_id, show_args=show_args)


@command.command("wait")
@click.argument("run_id", metavar="ID")
@click.option("--timeout", type=duration, help="Wait at most this long: 90s, 15m.")
@show_args
@shared_options
@pass_session
def wait_for_run(
    session: CommandSession, /, *, run_id: str, timeout: timedelta | None, show_args: bool
) -> None:
    """Wait for the end of a run and print its result.

    Ends with status 1 if the run did not succeed, and with 4 after the timeout.
    """
    app = app_of(session)
    run = app.runs.get(run_id)
    error = wait_for(run, session, None if timeout is None else timeout.total_seconds())
    view = ArgumentView(app, session, show=show_args)
    if session.as_json:
        print_json({"run": run_document(run.record, view.calls)})
    elif error is None:
        print_line(view.result_text(run.record))
    if error is not None:
        raise error


@command.command("cancel")
@click.argument("run_id", metavar="ID")
@click.option("--reason", default="", help="Reason, recorded with the run.")
@shared_options
@pass_session
def cancel_run(session: CommandSession, /, *, run_id: str, reason: str) -> None:
    """Cancel a waiting run, or request cancellation of a running one.

    Ends with status 1 if the run had already ended in another state.
    """
    app = app_of(session)
    answer = app.runs.cancel(run_id, reason=reason)
    too_late = answer not in {State.CANCELLED, "requested"}
    if session.as_json:
        print_json({"id": run_id, "answer": answer})
    elif too_late:
        print_note(f"Run {run_id} had already ended: {answer}.")
    elif not session.quiet:
        wording = "was asked to stop" if answer == "requested" else "is cancelled"
        print_line(f"Run {run_id} {wording}.")
    if too_late:
        raise click.exceptions.Exit(FAILURE)


@command.command("reschedule")
@click.argument("run_id", metavar="ID")
@click.option("--now", is_flag=True, help="Start the run as soon as a worker is free.")
@click.option("--delay", type=duration, help="Start the run after this delay: 90s, 15m, 24h.")
@click.option(
    "--at", type=instant, help="Start the run at this time, an ISO 8601 time with its zone."
)
@click.option("--priority", type=int, help="Priority; higher starts first.")
@click.option("--queue", help="The queue to move the run to.")
@click.option("--reason", default="", help="Reason, recorded with the run.")
@shared_options
@pass_session
def reschedule_run(
    session: CommandSession,
    /,
    *,
    run_id: str,
    now: bool,
    delay: timedelta | None,
    at: datetime | None,
    priority: int | None,
    queue: str | None,
    reason: str,
) -> None:
    """Change when, how urgently and in which queue a waiting run starts.

    Without --now, --delay or --at the run keeps its time.
    """
    if now and not (delay is None and at is None):
        raise click.UsageError("--now starts the run at once: leave out --delay and --at")
    if not now and (delay, at, priority, queue) == (None,) * 4:
        raise click.UsageError("pass --now, --delay, --at, --priority or --queue")
    app = app_of(session)
    run = app.runs.reschedule(
        run_id,
        delay=timedelta() if now else delay,
        at=at,
        priority=priority,
        queue=queue,
        reason=reason,
    )
    if session.as_json:
        view = ArgumentView(app, session, show=False)
        print_json({"run": run_document(run.record, view.calls)})
    elif not session.quiet:
        record = run.record
        due = shown_instant(record.due_at, app.store.now())
        print_line(
            f"Run {run.id} is due {due}, in queue {record.queue} with priority {record.priority}."
        )


@command.command("retry")
@click.argument("run_id", metavar="ID")
@click.option("--reason", default="", help="Reason, recorded with the run.")
@click.option(
    "--args", "arguments", type=json_arguments, metavar="JSON", help="Other arguments, as JSON."
)
@click.option("--fresh-effects", is_flag=True, help="Give the effects of the run new keys.")
@click.option(
    "--from-step", metavar="NAME", help="Keep the results of earlier steps and run the rest."
)
@shared_options
@pass_session
def retry_run(
    session: CommandSession,
    /,
    *,
    run_id: str,
    reason: str,
    arguments: JsonArguments | None,
    fresh_effects: bool,
    from_step: str | None,
) -> None:
    """Retry a run that has ended: same id, next generation."""
    app = app_of(session)
    edited = None if arguments is None else _edited(app, session, run_id, arguments)
    run = app.runs.retry(
        run_id,
        reason=reason,
        arguments=edited,
        fresh_effects=fresh_effects,
        from_step=from_step,
    )
    _print_queued_again(app, session, run)


@command.command("resolve")
@click.argument("run_id", metavar="ID")
@click.option("--done/--rerun", "done", default=None, help="The step had its effect, or had not.")
@click.option("--result", metavar="JSON", help="Result of the step; only with --done.")
@click.option("--step", metavar="NAME", help="The step, if several were running at once.")
@click.option("--reason", default="", help="Reason, recorded with the run.")
@shared_options
@pass_session
def resolve_run(
    session: CommandSession,
    /,
    *,
    run_id: str,
    done: bool | None,
    result: str | None,
    step: str | None,
    reason: str,
) -> None:
    """Record whether the interrupted step of a run had its effect, and let the run continue."""
    if done is None:
        raise click.UsageError("pass --done (the step had its effect) or --rerun (it had not)")
    if result is not None and not done:
        raise click.UsageError(
            "--result needs --done: a step that runs again returns its own result"
        )
    try:
        value = None if result is None else json.loads(result)
    except ValueError as error:
        raise click.UsageError(f"--result is not JSON: {error}") from error
    app = app_of(session)
    run = app.runs.resolve(run_id, done=done, result=value, step=step, reason=reason)
    _print_queued_again(app, session, run)


def _suggestion(app: Duly, task: str) -> str:
    """Return a question that names similar tasks, or "" if there is none or the task is known.

    It reads no runs: tasks are known from the application, from workers and from counts.
    """
    known = set(app.registry.names())
    for worker in app.store.list_workers():
        known.update(json.loads(worker.tasks))
    known.update(each.task for each in app.store.count_every_end_of_tasks(0))
    known.update(each.task for each in app.store.list_unregistered())
    meant = [] if task in known else similar(task, known)
    return f" Did you mean {' or '.join(meant[:_MEANT])}?" if meant else ""


def _print_queued_again(app: Duly, session: CommandSession, run: Run[Any]) -> None:
    """Print that a run is queued again, or that further steps must be resolved first."""
    if session.as_json:
        view = ArgumentView(app, session, show=False)
        print_json({"run": run_document(run.record, view.calls)})
    elif run.is_final:
        print_note(f"{run.why()}.")
    elif not session.quiet:
        print_line(f"Run {run.id} is queued again (generation {run.record.generation}).")


def _edited(
    app: Duly, session: CommandSession, run_id: str, arguments: JsonArguments
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if session.app_reference is None:
        message = "--args needs the application, to check them: give --app or set DULY_APP"
        raise click.UsageError(message)
    definition = app.registry.get(app.runs.get(run_id).record.task)
    return definition.codec.from_json(*arguments)
