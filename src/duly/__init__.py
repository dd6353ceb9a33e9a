"""Tasks that run later, on time, and once, on the database an application already has."""

from typing import TYPE_CHECKING, Any

from duly.api.runs import Filter
from duly.app import Duly
from duly.context import CONNECTION, RunConnection, current
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
    QueueFull,
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
from duly.version import VERSION

if TYPE_CHECKING:
    from duly.steps import agather, asleep, astep, await_for, gather, sleep, step, wait_for

__version__ = VERSION

__all__ = [  # noqa: RUF022 - grouped by what they are for
    # The application, its tasks and runs.
    "Duly",
    "Filter",
    "Retry",
    "Run",
    "Task",
    "current",
    "CONNECTION",
    "RunConnection",
    # Parts of a body that run once, and what it waits for without a worker.
    "agather",
    "asleep",
    "astep",
    "await_for",
    "gather",
    "sleep",
    "step",
    "wait_for",
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
    "QueueFull",
    "PayloadError",
    "RunCancelled",
    "RunFailed",
    "RunInterrupted",
    "RunNotFound",
    "StoreError",
    "StoreUnavailable",
    "TaskNotRegistered",
]

_STEPS = frozenset(
    ("agather", "asleep", "astep", "await_for", "gather", "sleep", "step", "wait_for")
)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
    if name not in _STEPS:
        message = f"module 'duly' has no attribute {name!r}"
        raise AttributeError(message)
    # Programs that only enqueue need not pay for it.
    from duly import steps  # noqa: PLC0415

    return getattr(steps, name)
