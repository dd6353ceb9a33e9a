"""Tasks that run later, on time, and once, on the database an application already has."""

from duly.api.runs import Filter
from duly.app import Duly
from duly.context import current
from duly.core.retry import Retry
from duly.errors import (
    BadArguments,
    BadOption,
    ClaimLost,
    Discard,
    DulyError,
    DuplicateTask,
    KeyConflict,
    PayloadError,
    RetryAfter,
    RunCancelled,
    RunFailed,
    RunInterrupted,
    RunNotFound,
    Snooze,
    StoreError,
    StoreUnavailable,
    TaskNotRegistered,
)
from duly.run import Run
from duly.task import Task

__version__ = "0.1.0"

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # The application, its tasks and runs.
    "Duly",
    "Filter",
    "Retry",
    "Run",
    "Task",
    "current",
    # What a task raises to say what follows.
    "Discard",
    "RetryAfter",
    "Snooze",
    # What can go wrong.
    "BadArguments",
    "BadOption",
    "ClaimLost",
    "DulyError",
    "DuplicateTask",
    "KeyConflict",
    "PayloadError",
    "RunCancelled",
    "RunFailed",
    "RunInterrupted",
    "RunNotFound",
    "StoreError",
    "StoreUnavailable",
    "TaskNotRegistered",
]
