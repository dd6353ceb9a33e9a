"""Follows runs as they change, for `runs tail`."""

import json
import threading
from collections.abc import Iterator

import click

from duly.api.json_forms import run_document
from duly.api.runs import Filter
from duly.app import Duly
from duly.cli.arguments import ArgumentView
from duly.cli.output import print_line
from duly.cli.run_table import run_note
from duly.cli.session import CommandSession
from duly.clock import monotonic
from duly.core.instants import iso
from duly.core.record import RunRecord
from duly.limits import PAGE

_LOOK_SECONDS = 0.5


def changes(app: Duly, which: Filter, *, first: int, until: float | None) -> Iterator[RunRecord]:
    """Yield the newest runs, oldest first, and then each of the newest runs that changes."""
    newest = _newest(app, which)
    # Runs that existed before and are not shown count as seen.
    seen = {record.id: _state_key(record) for record in newest}
    yield from newest[len(newest) - first :] if first < len(newest) else newest
    while until is None or monotonic() < until:
        left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - monotonic())
        threading.Event().wait(max(0.0, left))
        newest = _newest(app, which)
        for record in newest:
            if seen.get(record.id) != _state_key(record):
                yield record
        seen = {record.id: _state_key(record) for record in newest}


def print_change(app: Duly, session: CommandSession, record: RunRecord, view: ArgumentView) -> None:
    """Print one line."""
    if session.as_json:
        click.echo(json.dumps(run_document(record, view.calls)))
        return
    if session.quiet:
        print_line(record.id)
        return
    now = app.store.now()
    at = (iso(now) or "")[11:19]
    words = (at, record.id, f"{record.state:<11}", record.task, run_note(record, now))
    print_line(" ".join(filter(None, words)))


def _newest(app: Duly, which: Filter) -> list[RunRecord]:
    return [run.record for run in app.runs.page(which, limit=PAGE)][::-1]


def _state_key(record: RunRecord) -> tuple[str, int]:
    return record.state, record.claim_number
