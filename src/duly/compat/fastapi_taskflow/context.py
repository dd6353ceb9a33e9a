"""What a running task can know and say about itself."""

import logging
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from duly.context import current
from duly.errors import NoCurrentRun

_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

LogListener = Callable[["TaskContext", str, str, dict[str, Any]], None]
log_listener: ContextVar[LogListener | None] = ContextVar("duly_taskflow_hearing", default=None)
"""Who is told of the lines of the body that runs in this context, besides the run's record."""


@dataclass
class TaskContext:
    """The task that is running."""

    task_id: str
    func_name: str
    attempt: int
    """Which try this is, from 0."""
    tags: dict[str, str] = field(default_factory=dict)


def get_task_context() -> TaskContext | None:
    """Return the context of the task whose body is calling; None outside of tasks."""
    try:
        run = current()
    except NoCurrentRun:
        return None
    return TaskContext(run.run_id, func_name(run.task), run.attempt - 1, run.tags)


def task_log(message: str, *, level: str = "info", **extra: Any) -> None:  # noqa: ANN401
    """Keep a line with the task that is running; outside of tasks it goes to `duly.taskflow`.

    Observers are given `extra`, too.
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
    """Return the function's own name of `module:qualname`, or the explicit name."""
    module, colon, name = task.rpartition(":")
    return name.rpartition(".")[2] if colon and module else task
