"""Reports errors: one line on stderr, and an exit status for the kind of error."""

import json
import traceback

import click

from duly.core.escape import clean, clean_lines
from duly.errors import (
    AppBroken,
    BadArguments,
    BadOption,
    DulyError,
    LetterNotFound,
    PayloadError,
    QueueFull,
    RunNotFound,
    ScheduleNotFound,
    StoreUnavailable,
    TaskNotRegistered,
    WorkerTimeout,
)
from duly.worker.app_loader import users_traceback

FAILURE = 1
USAGE = 2
NOT_FOUND = 3
TIMEOUT = 4
TEMPORARY = 75
"""EX_TEMPFAIL of sysexits.h: the same command may succeed later."""
INTERRUPTED = 130
"""The status that shells report for a program that SIGINT ended."""


class NotConfirmed(DulyError):
    """The user did not confirm an action."""


class TaskNotFound(DulyError):
    """A command names an unknown task."""

    def __init__(self, task: str, meant: str) -> None:
        super().__init__(f"task {task!r} is unknown here: {meant}")


_STATUS: dict[type[DulyError], int] = {
    BadArguments: USAGE,
    BadOption: USAGE,
    PayloadError: USAGE,
    LetterNotFound: NOT_FOUND,
    RunNotFound: NOT_FOUND,
    ScheduleNotFound: NOT_FOUND,
    TaskNotFound: NOT_FOUND,
    TaskNotRegistered: NOT_FOUND,
    WorkerTimeout: TIMEOUT,
    StoreUnavailable: TEMPORARY,
    QueueFull: TEMPORARY,
}


def status_of(error: DulyError) -> int:
    """Return the exit status for an error."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    return FAILURE


def report(error: DulyError, *, as_json: bool = False, verbose: bool = False) -> None:
    """Print an error to stderr."""
    if as_json:
        _report_json(type(error).__name__, str(error))
        return
    hint = "; add -v for the traceback" if isinstance(error, AppBroken) and not verbose else ""
    click.echo(f"Error: {clean(str(error))}{hint}", err=True)
    cause = error.__cause__
    if verbose and cause is not None:
        is_users = isinstance(error, AppBroken)
        text = users_traceback(cause) if is_users else "".join(traceback.format_exception(cause))
        click.echo(clean_lines(text.rstrip()), err=True)


def report_usage(error: click.UsageError) -> None:
    """Print a command line error to stderr as JSON."""
    _report_json("UsageError", error.format_message())


def _report_json(kind: str, message: str) -> None:
    click.echo(json.dumps({"error": {"kind": kind, "message": message}}), err=True)
