"""Waiting for the end of a run, with a bar where somebody watches."""

from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from duly.cli.output import stderr_console
from duly.cli.session import Session
from duly.clock import monotonic
from duly.core.escape import clean
from duly.core.record import RunRecord
from duly.errors import (
    DulyError,
    PayloadError,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    WorkerTimeout,
)
from duly.run import Run

_LOOK_SECONDS = 1.0


def wait_for(run: Run[Any], session: Session, timeout: float | None) -> DulyError | None:
    """Wait until the run has ended or the time is over; return what is wrong, None if nothing."""
    console = None if session.as_json or session.quiet else stderr_console()
    try:
        if console is None:
            run.result(timeout)
        else:
            _watch(run, console, timeout)
    except (WorkerTimeout, RunFailed, RunInterrupted, RunCancelled) as error:
        return error
    except PayloadError:
        # It succeeded; only the classes in its result are unknown here, and nobody needs them.
        return None
    return None


def result_text(run: RunRecord) -> str:
    """Return what the task returned, as JSON."""
    return "null" if run.result is None else run.result


def _watch(run: Run[Any], console: Console, timeout: float | None) -> None:
    until = None if timeout is None else monotonic() + timeout
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=None)
        while True:
            left = _LOOK_SECONDS if until is None else min(_LOOK_SECONDS, until - monotonic())
            with suppress(WorkerTimeout):
                run.result(max(0.0, left))
                return
            record = run.record
            if until is not None and monotonic() >= until:
                message = f"run {run.id} is still {record.state} after {timeout:g} s: {run.why()}"
                raise WorkerTimeout(message)
            text = clean(" ".join(filter(None, (record.state, record.progress_text))))
            total = None if record.progress is None else 1.0
            progress.update(bar, description=text, total=total, completed=record.progress or 0)
