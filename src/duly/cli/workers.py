"""`duly workers`: list."""

import click

from duly.api.json_forms import WORKER
from duly.cli.applications import app_of
from duly.cli.list_group import ListGroup
from duly.cli.output import print_json, print_line, print_note
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import Column, print_table
from duly.core.json_text import parsed
from duly.core.record import WorkerRecord
from duly.core.served_queues import ServedQueues
from duly.core.time_text import relative
from duly.core.why import worker_command

_COLUMNS = (
    Column("ID", whole=True),
    Column("STATE", whole=True),
    Column("HOST"),
    Column("PID", whole=True, right=True),
    Column("RUNNING", from_width=80, whole=True, right=True),
    Column("SEEN", from_width=80, whole=True),
    Column("STARTED", from_width=100, whole=True),
    Column("VERSION", from_width=120),
    Column("QUEUES", from_width=120),
    Column("TASKS", from_width=120),
)


@click.group("workers", cls=ListGroup)
@shared_options
def command() -> None:
    """List workers."""


@command.command("list")
@shared_options
@pass_session
def list_workers(session: CommandSession) -> None:
    """List workers, newest first, including ended ones.

    A killed worker is live until its lease expires: check when it was last seen. Then it is silent,
    and dead after another worker has taken over its runs.
    """
    app = app_of(session)
    workers = app.workers.list()
    if session.as_json:
        print_json({"workers": [WORKER.document(worker) for worker in workers]})
    elif session.quiet:
        for worker in workers:
            print_line(worker.id)
    elif not workers:
        print_note(
            f"No worker has been seen on {app.store.shown_url} yet; start one with "
            f"`{worker_command(app.settings.app)}`."
        )
    else:
        now = app.store.now()
        print_table(_COLUMNS, [_row(worker, now) for worker in workers])


def _row(worker: WorkerRecord, now: int) -> tuple[str, ...]:
    return (
        worker.id,
        worker.state,
        worker.host,
        str(worker.pid),
        str(worker.running),
        relative(worker.seen_at, now),
        relative(worker.started_at, now),
        worker.version or worker.engine or "",
        ServedQueues.read(worker.queues).shown("every queue"),
        _names(worker.tasks),
    )


def _names(stored: str) -> str:
    found = parsed(stored)
    return ", ".join(map(str, found)) if isinstance(found, list) else stored
