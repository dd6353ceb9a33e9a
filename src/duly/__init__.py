"""Background tasks, cron and durable workflows, in the database an application already has."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from duly.version import VERSION

if TYPE_CHECKING:
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
    from duly.steps.functions import (
        agather,
        asleep,
        astep,
        await_for,
        gather,
        sleep,
        step,
        wait_for,
    )
    from duly.task import Task

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
    # Steps that run once, and waits that need no worker.
    "agather",
    "asleep",
    "astep",
    "await_for",
    "gather",
    "sleep",
    "step",
    "wait_for",
    # Exceptions that a task raises to say what happens next.
    "Discard",
    "RetryAfter",
    "Snooze",
    # Errors.
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

# A name's module is loaded when the name is first used. So a program that needs one part, such as
# the supervisor process, does not import the others.
_MODULES = {
    "Duly": "app",
    "Filter": "api.runs",
    "Retry": "core.retry",
    "Run": "run",
    "Task": "task",
    **dict.fromkeys(("CONNECTION", "RunConnection", "current"), "context"),
    **dict.fromkeys(
        ("agather", "asleep", "astep", "await_for", "gather", "sleep", "step", "wait_for"),
        "steps.functions",
    ),
}
_ALL_OTHERS = "errors"


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever has that name
        if name == _ALL_OTHERS:
            return import_module(f"{__name__}.{name}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(import_module(f"{__name__}.{_MODULES.get(name, _ALL_OTHERS)}"), name)
        globals()[name] = found
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
