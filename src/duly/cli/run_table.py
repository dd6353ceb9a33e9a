"""Lists of runs, the same for `runs list` and `dead list`."""

from collections.abc import Sequence

from duly.api.json_forms import run_document
from duly.api.runs import Page
from duly.app import Duly
from duly.cli.arguments import ArgumentView
from duly.cli.output import print_json, print_line, print_note
from duly.cli.session import CommandSession
from duly.cli.tables import Column, print_table
from duly.core.record import RunRecord
from duly.core.states import FINAL, State
from duly.core.time_text import relative

_COLUMNS = (
    Column("ID", whole=True),
    Column("STATE", whole=True),
    Column("TASK"),
    Column("QUEUE", from_width=120),
    Column("TRY", from_width=100, whole=True, right=True),
    Column("MADE", from_width=80, whole=True),
    Column("ARGUMENTS", from_width=140),
    Column("NOTE", from_width=100),
)


def print_runs(
    app: Duly, session: CommandSession, page: Page, view: ArgumentView, *, none: str
) -> None:
    """Print a page of runs in the output format of the session."""
    if session.as_json:
        runs = [run_document(run.record, view.calls) for run in page]
        print_json({"runs": runs, "cursor": page.cursor})
        return
    if session.quiet:
        for run in page:
            print_line(run.id)
        return
    if not page:
        print_note(none)
        return
    print_run_table([run.record for run in page], view, app.store.now())
    print_cursor(page.cursor)


def print_run_table(runs: Sequence[RunRecord], view: ArgumentView, now: int) -> None:
    """Print runs as a table."""
    print_table(_COLUMNS, [_row(run, view, now) for run in runs])


def print_cursor(cursor: str | None) -> None:
    """Print how to get the next page."""
    if cursor is not None:
        print_note(f"There may be more: --cursor {cursor}")


def _row(run: RunRecord, view: ArgumentView, now: int) -> tuple[str, ...]:
    return (
        run.id,
        run.state,
        run.task,
        run.queue,
        str(run.attempt),
        relative(run.created_at, now),
        view.text(run),
        run_note(run, now),
    )


def run_note(run: RunRecord, now: int) -> str:
    """Return a short note with details that the state does not show."""
    if run.state in FINAL:
        return ": ".join(filter(None, (run.cause, (run.error or "").partition("\n")[0])))
    if run.cancel_requested:
        return "cancellation requested"
    if run.parked == "paused":
        return "its queue is paused"
    if run.parked is not None:
        return "no live worker knows its task"
    if run.state == State.QUEUED:
        return f"due {relative(run.due_at, now)}" if run.due_at > now else ""
    return progress_of(run)


def progress_of(run: RunRecord) -> str:
    """Return the progress that a run has reported."""
    share = None if run.progress is None else f"{run.progress:.0%}"
    return " ".join(filter(None, (share, run.progress_text)))
