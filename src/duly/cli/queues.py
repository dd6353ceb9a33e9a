"""`duly queues`: list, pause, resume, limit, drain."""

import threading
from datetime import timedelta
from typing import Any

import click

from duly.api.json_forms import queue_document
from duly.app import Duly
from duly.cli.applications import app_of
from duly.cli.list_group import ListGroup
from duly.cli.option_types import duration
from duly.cli.output import print_json, print_line, print_note
from duly.cli.progress import bar
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import Column, print_table
from duly.clock import monotonic
from duly.core.served_queues import ServedQueues
from duly.core.suggestions import similar
from duly.errors import WorkerTimeout
from duly.limits import COUNT_CAP

_LOOK_SECONDS = 0.2

_COLUMNS = (
    Column("QUEUE"),
    Column("STATE", whole=True),
    Column("READY", whole=True, right=True),
    Column("WAITING", whole=True, right=True),
    Column("RUNNING", whole=True, right=True),
    Column("LIMIT", whole=True, right=True),
    Column("MAX", whole=True, right=True),
)

_reason = click.option("--reason", default="", help="Reason, recorded in the audit log.")


@click.group("queues", cls=ListGroup)
@shared_options
def command() -> None:
    """List, pause, resume, limit and drain queues."""


@command.command("list")
@shared_options
@pass_session
def list_queues(session: CommandSession) -> None:
    """List the queues that have live runs or were paused."""
    app = app_of(session)
    queues = app.queues.list()
    if session.as_json:
        print_json({"queues": [queue_document(queue) for queue in queues]})
    elif session.quiet:
        for queue in queues:
            print_line(queue.name)
    elif not queues:
        print_note(f"No queue has a live run in {app.store.shown_url}.")
    else:
        rows = [
            (
                queue.name,
                "paused" if queue.paused else "open",
                _count(queue.ready),
                _count(queue.waiting),
                _count(queue.running),
                "-" if queue.limit is None else f"{queue.limit:,}",
                "-" if queue.max_size is None else f"{queue.max_size:,}",
            )
            for queue in queues
        ]
        print_table(_COLUMNS, rows)


@command.command("pause")
@click.argument("name")
@_reason
@shared_options
@pass_session
def pause_queue(session: CommandSession, /, *, name: str, reason: str) -> None:
    """Pause a queue: its runs do not start until it is resumed; running runs continue."""
    app = app_of(session, creates=True)
    unused = _unused(app, name)
    app.queues.pause(name, reason=reason)
    _print_state(session, name, paused=True)
    if unused and not session.quiet:
        print_note(unused)


@command.command("resume")
@click.argument("name")
@_reason
@shared_options
@pass_session
def resume_queue(session: CommandSession, /, *, name: str, reason: str) -> None:
    """Resume a queue."""
    app_of(session, creates=True).queues.resume(name, reason=reason)
    _print_state(session, name, paused=False)


@command.command("limit")
@click.argument("name")
@click.argument("limit", metavar="[LIMIT|none]", required=False)
@click.option("--max-size", metavar="N|none", help="How many runs may wait for workers.")
@_reason
@shared_options
@pass_session
def limit_queue(
    session: CommandSession, /, *, name: str, limit: str | None, max_size: str | None, reason: str
) -> None:
    """Limit how many runs of a queue run at once, over all workers; LIMIT "none" removes the limit.

    --max-size is how many runs may wait, approximately; further enqueue calls raise QueueFull.
    """
    if limit is None and max_size is None:
        raise click.UsageError("pass how many runs may run at once, or --max-size")
    chosen: dict[str, Any] = {
        what: None if text == "none" else _whole(text)
        for what, text in (("limit", limit), ("max_size", max_size))
        if text is not None
    }
    app = app_of(session, creates=True)
    unused = _unused(app, name)
    app.queues.limit(name, **chosen, reason=reason)
    if session.as_json:
        print_json({"name": name, **chosen})
    elif not session.quiet:
        shown = {what: "any number" if n is None else f"{n:,}" for what, n in chosen.items()}
        if "limit" in shown:
            print_line(f"Queue {name} runs {shown['limit']} at once.")
        if "max_size" in shown:
            print_line(f"In queue {name} {shown['max_size']} runs may wait.")
        if unused:
            print_note(unused)


def _whole(text: str) -> int:
    if not text.isdigit():
        raise click.BadParameter(f"{text!r} is neither a whole number nor none")
    return int(text)


@command.command("drain")
@click.argument("name")
@click.option("--timeout", type=duration, help="Wait at most this long: 90s, 15m.")
@shared_options
@pass_session
def drain_queue(session: CommandSession, /, *, name: str, timeout: timedelta | None) -> None:
    """Wait until no run of a queue is ready or running; ends with status 4 after the timeout.

    Runs that are due later, or that wait because their queue is paused or no worker knows their
    task, are not waited for.
    """
    app = app_of(session)
    unused = _unused(app, name)
    until = None if timeout is None else monotonic() + timeout.total_seconds()
    first = _left(app, name)
    with bar(session, f"Draining {name}", total=first) as show:
        while left := _left(app, name):
            if until is not None and monotonic() >= until:
                text = f"queue {name!r} still has {left:,} runs that are ready or running"
                raise WorkerTimeout(text)
            show(max(0, first - left))
            threading.Event().wait(_LOOK_SECONDS)
    if session.as_json:
        print_json({"name": name, "drained": True, "known": not unused})
    elif not session.quiet:
        print_line(f"No run of queue {name} is ready or running.")
        if unused:
            print_note(unused)


def _left(app: Duly, name: str) -> int:
    return sum(each.ready + each.running for each in app.queues.list() if each.name == name)


def _unused(app: Duly, name: str) -> str:
    """Return a note that a queue has never been used, since its name may be mistyped, or ""."""
    known = {queue.name for queue in app.queues.list()}
    known |= {definition.queue for definition in app.registry.definitions()}
    for worker in app.workers.list():
        known.update(*ServedQueues.read(worker.queues))
    if name in known or app.runs.list(queue=name, limit=1):
        return ""
    meant = similar(name, known)
    hint = f"; there is {', '.join(meant)}" if meant else ""
    return f"Note: no run and no worker has used queue {name!r} yet{hint}."


def _print_state(session: CommandSession, name: str, *, paused: bool) -> None:
    if session.as_json:
        print_json({"name": name, "paused": paused})
    elif not session.quiet:
        print_line(f"Queue {name} is {'paused' if paused else 'open'}.")


def _count(number: int) -> str:
    return f"{COUNT_CAP:,}+" if number > COUNT_CAP else f"{number:,}"
