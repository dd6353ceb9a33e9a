"""Waits for the end of a run, with a progress bar on a terminal."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from duly.cli.output import print_note
from duly.cli.session import CommandSession
from duly.cli.tables import stderr_console
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
from duly.run import ResultPoll, Run


def wait_for(run: Run[Any], session: CommandSession, timeout: float | None) -> DulyError | None:
    """Wait until the run ends or the timeout expires. Return the error, or None on success."""
    is_silent = session.as_json or session.quiet
    looks = ResultPoll(run, timeout, _ignore_unclaimed if is_silent else _print_unclaimed)
    console = None if is_silent else stderr_console()
    try:
        with ExitStack() as stack:
            show = _bar(console, stack)
            for pause in looks:
                show(run.record)
                threading.Event().wait(pause)
        run.result(0)
    except (WorkerTimeout, RunFailed, RunInterrupted, RunCancelled) as error:
        return error
    except PayloadError:
        # The run succeeded. Only the classes in its result are unknown here, and they are not
        # needed.
        return None
    return None


def _print_unclaimed(run_id: str, task: str, reason: str) -> None:
    print_note(f"Run {run_id} ({task}) has not started yet: {reason}.")


def _ignore_unclaimed(*_: str) -> None:
    """Print nothing: with JSON output, the error of a timeout reports it."""


def _bar(console: Console | None, stack: ExitStack) -> Callable[[RunRecord], None]:
    """Return a callback that shows the state of a run."""
    if console is None:
        return lambda _: None
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    progress = stack.enter_context(Progress(*columns, console=console, transient=True))
    bar = progress.add_task("", total=None)

    def show(record: RunRecord) -> None:
        text = clean(" ".join(filter(None, (record.state, record.progress_text))))
        total = None if record.progress is None else 1.0
        progress.update(bar, description=text, total=total, completed=record.progress or 0)

    return show
