"""Observers that receive the log lines and lifecycle events of tasks."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from logging.handlers import RotatingFileHandler, WatchedFileHandler
from pathlib import Path
from typing import Any, Literal

from duly.compat.fastapi_taskflow.records import TaskStatus
from duly.core.escape import clean
from duly.errors import BadOption

_LEVELS = {"debug": 0, "info": 1, "warning": 2, "error": 3}
_STATUS_LEVELS = {TaskStatus.FAILED: "error", TaskStatus.INTERRUPTED: "warning"}


@dataclass
class LogEvent:
    """A line that a task wrote with `task_log`."""

    task_id: str
    func_name: str
    message: str
    level: str
    timestamp: datetime
    attempt: int
    tags: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass
class LifecycleEvent:
    """A task has started, or its end has been recorded."""

    task_id: str
    func_name: str
    status: TaskStatus
    timestamp: datetime
    attempt: int
    retries_used: int
    duration: float | None = None
    error: str | None = None
    stacktrace: str | None = None
    tags: dict[str, str] = field(default_factory=dict)


class TaskObserver:
    """The base class of observers. An exception in one is logged and affects nothing else."""

    def __init__(self, min_level: str = "info") -> None:
        if min_level not in _LEVELS:
            raise BadOption(f"min_level must be one of {', '.join(_LEVELS)}, not {min_level!r}")
        self._min_level = _LEVELS[min_level]

    def _should_log(self, level: str) -> bool:
        return _LEVELS.get(level, 1) >= self._min_level

    def _should_log_lifecycle(self, event: LifecycleEvent) -> bool:
        return self._should_log(_STATUS_LEVELS.get(event.status, "info"))

    async def on_log(self, event: LogEvent) -> None:
        """Receive a log line."""

    async def on_lifecycle(self, event: LifecycleEvent) -> None:
        """Receive the start or end of a task."""

    async def startup(self) -> None:
        """Prepare the observer before the first task starts."""

    async def close(self) -> None:
        """Release resources after the last event."""


class LoggerChain(TaskObserver):
    """Passes each event on to several observers, one after another."""

    def __init__(self, loggers: Sequence[TaskObserver]) -> None:
        super().__init__("debug")
        self._loggers = list(loggers)
        for each in self._loggers:
            if not isinstance(each, TaskObserver):
                raise BadOption(f"an observer must be a TaskObserver, not {each!r:.80}")

    async def on_log(self, event: LogEvent) -> None:
        for each in self._loggers:
            await _call_observer(each, "on_log", event)

    async def on_lifecycle(self, event: LifecycleEvent) -> None:
        for each in self._loggers:
            await _call_observer(each, "on_lifecycle", event)

    async def startup(self) -> None:
        for each in self._loggers:
            await _call_observer(each, "startup")

    async def close(self) -> None:
        for each in self._loggers:
            await _call_observer(each, "close")


async def _call_observer(
    observer: TaskObserver, what: str, *event: LogEvent | LifecycleEvent
) -> None:
    try:
        await getattr(observer, what)(*event)
    except Exception:
        logging.getLogger("duly.taskflow").exception(
            "observer %s failed in %s", type(observer).__name__, what
        )


class InMemoryLogger(TaskObserver):
    """Keeps all events, for tests."""

    def __init__(self, *, min_level: str = "debug") -> None:
        super().__init__(min_level)
        self.log_events: list[LogEvent] = []
        self.lifecycle_events: list[LifecycleEvent] = []

    async def on_log(self, event: LogEvent) -> None:
        if self._should_log(event.level):
            self.log_events.append(event)

    async def on_lifecycle(self, event: LifecycleEvent) -> None:
        self.lifecycle_events.append(event)

    def clear(self) -> None:
        """Remove all events."""
        self.log_events.clear()
        self.lifecycle_events.clear()


class _LineLogger(TaskObserver):
    """Writes a line for each event."""

    _dates_lines = False
    """Whether lines of tasks have a timestamp. Lifecycle lines always have one."""

    def __init__(self, *, log_lifecycle: bool, min_level: str) -> None:
        super().__init__(min_level)
        self._log_lifecycle = log_lifecycle

    def write(self, line: str) -> None:
        """Write one line."""
        raise NotImplementedError

    async def on_log(self, event: LogEvent) -> None:
        if self._should_log(event.level):
            at = f"{event.timestamp:%Y-%m-%dT%H:%M:%S} " if self._dates_lines else ""
            line = clean(event.message)
            self.write(f"[{event.task_id[:8]}] [{event.func_name}] {at}{line}")

    async def on_lifecycle(self, event: LifecycleEvent) -> None:
        if self._log_lifecycle and self._should_log_lifecycle(event):
            at = f"{event.timestamp:%Y-%m-%dT%H:%M:%S}"
            status = event.status.value.upper()
            self.write(f"[{event.task_id[:8]}] [{event.func_name}] {at} -- {status}")


class StdoutLogger(_LineLogger):
    """Writes to standard output."""

    _dates_lines = True

    def __init__(self, *, log_lifecycle: bool = True, min_level: str = "info") -> None:
        super().__init__(log_lifecycle=log_lifecycle, min_level=min_level)

    def write(self, line: str) -> None:
        sys.stdout.write(f"{line}\n")


class FileLogger(_LineLogger):
    """Writes to a file that it rotates itself, or that another program rotates ("watched")."""

    def __init__(
        self,
        path: str,
        max_bytes: int = 10 * 1024 * 1024,
        backup_count: int = 5,
        mode: Literal["rotate", "watched"] = "rotate",
        *,
        log_lifecycle: bool = False,
        min_level: str = "info",
    ) -> None:
        super().__init__(log_lifecycle=log_lifecycle, min_level=min_level)
        if mode not in {"rotate", "watched"}:
            raise BadOption(f'mode must be "rotate" or "watched", not {mode!r}')
        for what, value in (("max_bytes", max_bytes), ("backup_count", backup_count)):
            if type(value) is not int or value < 0:
                raise BadOption(f"{what} must be a whole number of at least 0, not {value!r:.80}")
        Path(path).open("a").close()  # Create the file now, for programs that follow it.
        # The handlers open the file at the first line, and so in the process that writes it.
        self._handler: logging.Handler = (
            WatchedFileHandler(path, encoding="utf-8", delay=True)
            if mode == "watched"
            else RotatingFileHandler(
                path, maxBytes=max_bytes, backupCount=backup_count, encoding="utf-8", delay=True
            )
        )

    def write(self, line: str) -> None:
        self._handler.handle(logging.LogRecord("", logging.INFO, "", 0, line, None, None))

    async def close(self) -> None:
        self._handler.close()
