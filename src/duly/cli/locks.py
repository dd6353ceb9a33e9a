"""`duly locks`: list."""

from collections.abc import Iterator
from typing import Any

import click

from duly.cli.applications import app_of
from duly.cli.list_group import ListGroup
from duly.cli.output import print_json, print_line, print_note
from duly.cli.session import CommandSession, pass_session, shared_options
from duly.cli.tables import Column, print_table
from duly.core.record import LockRecord
from duly.core.time_text import coarse_duration
from duly.limits import PAGE
from duly.store.reads import Inspector

_COLUMNS = (
    Column("LOCK"),
    Column("HOLDER"),
    Column("FENCE", whole=True, right=True),
    Column("TIME LEFT", whole=True, right=True),
)


@click.group("locks", cls=ListGroup)
@shared_options
def command() -> None:
    """List held locks."""


@command.command("list")
@shared_options
@pass_session
def list_locks(session: CommandSession) -> None:
    """List the held locks by name.

    A worker renews a lock while it is held. TIME LEFT is how long the lock remains if its holder
    dies now.
    """
    store = app_of(session).store
    locks = list(_held(store))
    if session.as_json:
        print_json({"locks": [_document(lock) for lock in locks]})
    elif session.quiet:
        for lock in locks:
            print_line(lock.name)
    elif not locks:
        print_note(f"No lock is held in {store.shown_url}.")
    else:
        print_table(_COLUMNS, [_row(lock) for lock in locks])


def _held(store: Inspector) -> Iterator[LockRecord]:
    after = ""
    while page := store.list_locks(after, PAGE):
        yield from page
        after = page[-1].name


def _row(lock: LockRecord) -> tuple[str, ...]:
    return lock.name, lock.holder, str(lock.fence), coarse_duration(lock.left)


def _document(lock: LockRecord) -> dict[str, Any]:
    return {
        "name": lock.name,
        "holder": lock.holder,
        "fence": lock.fence,
        "left_seconds": lock.left / 1e6,
    }
