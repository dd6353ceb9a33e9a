"""The API of fastapi-taskflow on top of duly: its users change the import, and lose no task."""

from typing import TYPE_CHECKING, Never

from duly.integrations.extras import missing

try:
    from duly.compat.fastapi_taskflow.admin import TaskAdmin
    from duly.compat.fastapi_taskflow.auth import TaskAuthBackend
    from duly.compat.fastapi_taskflow.backends import (
        MySQLBackend,
        PostgresBackend,
        RedisBackend,
        SnapshotBackend,
        SqliteBackend,
    )
    from duly.compat.fastapi_taskflow.context import TaskContext, get_task_context, task_log
    from duly.compat.fastapi_taskflow.enqueue import ManagerNotStarted
    from duly.compat.fastapi_taskflow.loggers import (
        FileLogger,
        InMemoryLogger,
        LifecycleEvent,
        LogEvent,
        LoggerChain,
        StdoutLogger,
        TaskObserver,
    )
    from duly.compat.fastapi_taskflow.manager import TaskManager
    from duly.compat.fastapi_taskflow.one_time import ScheduledOnce
    from duly.compat.fastapi_taskflow.queues import QueueConfig, QueueFullError
    from duly.compat.fastapi_taskflow.records import TaskRecord, TaskStatus
    from duly.compat.fastapi_taskflow.tasks import ManagedBackgroundTasks
    from duly.errors import PayloadError as TaskArgumentError
except ModuleNotFoundError as error:
    raise missing(error, "fastapi", __name__) from error

__all__ = [
    "FileLogger",
    "InMemoryLogger",
    "LifecycleEvent",
    "LogEvent",
    "LoggerChain",
    "ManagedBackgroundTasks",
    "ManagerNotStarted",
    "MySQLBackend",
    "PostgresBackend",
    "QueueConfig",
    "QueueFullError",
    "RedisBackend",
    "ScheduledOnce",
    "SnapshotBackend",
    "SqliteBackend",
    "StdoutLogger",
    "TaskAdmin",
    "TaskArgumentError",
    "TaskAuthBackend",
    "TaskContext",
    "TaskManager",
    "TaskObserver",
    "TaskRecord",
    "TaskStatus",
    "get_task_context",
    "task_log",
]

_NOT_NEEDED = {
    "SnapshotScheduler": "every task is in the store when add_task returns, with nothing to flush",
    "TaskConfig": "a task's options are those of @task_manager.task(…)",
    "TaskExecutionContext": "get_task_context() returns a TaskContext, in processes too",
}

if not TYPE_CHECKING:  # With this function, type checkers would accept any name in the module.

    def __getattr__(name: str) -> Never:
        """Raise an error that explains what replaces a removed name."""
        if name in _NOT_NEEDED:
            # Python would replace an AttributeError by an ImportError without the explanation.
            raise ImportError(f"there is no {name} in {__name__}: {_NOT_NEEDED[name]}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
