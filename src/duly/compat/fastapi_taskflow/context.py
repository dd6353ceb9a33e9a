"""The context of a running task, and its log."""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from duly import current
from duly.errors import NoCurrentRun

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

LogListener = Callable[["TaskContext", str, str, dict[str, Any]], None]
log_listener: ContextVar[LogListener | None] = ContextVar("duly_taskflow_hearing", default=None)
"""Receives the log lines of the task in this context, in addition to the run's own log."""


@dataclass
class TaskContext:
    """The running task."""

    task_id: str
    func_name: str
    attempt: int
    """The number of the attempt, from 0."""
    tags: dict[str, str] = field(default_factory=dict)


def get_task_context() -> TaskContext | None:
    """Return the context of the running task, or None outside of tasks."""
    try:
        run = current()
    except NoCurrentRun:
        return None
    return TaskContext(run.run_id, func_name(run.task), run.attempt - 1, run.tags)


def task_log(message: str, *, level: str = "info", **extra: Any) -> None:  # noqa: ANN401
    """Add a line to the log of the running task. Outside of tasks, log it to `duly.taskflow`.

    Observers also receive `extra`.
    """
    context = get_task_context()
    level = level.lower() if level.lower() in _LEVELS else "info"
    if context is None:
        logging.getLogger("duly.taskflow").log(_LEVELS[level], "%s", message)
        return
    log = current().log
    {"debug": log.debug, "info": log.info, "warning": log.warning, "error": log.error}[level](
        "%s", message
    )
    hear = log_listener.get()
    if hear is not None:
        hear(context, message, level, extra)


def func_name(task: str) -> str:
    """Return the function's name from `module:qualname`, or the explicit name."""
    module, colon, name = task.rpartition(":")
    return name.rpartition(".")[2] if colon and module else task
