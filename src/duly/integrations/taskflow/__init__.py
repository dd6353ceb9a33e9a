"""fastapi-taskflow's shape over duly: its users change the import, and lose no task."""

from duly.integrations.extras import missing

try:
    from duly.integrations.taskflow.accepting import ManagerNotStarted
    from duly.integrations.taskflow.admin import TaskAdmin
    from duly.integrations.taskflow.auth import TaskAuthBackend
    from duly.integrations.taskflow.backends import (
        MySQLBackend,
        PostgresBackend,
        RedisBackend,
        SnapshotBackend,
        SqliteBackend,
    )
    from duly.integrations.taskflow.context import TaskContext, get_task_context, task_log
    from duly.integrations.taskflow.loggers import (
        FileLogger,
        InMemoryLogger,
        LifecycleEvent,
        LogEvent,
        LoggerChain,
        StdoutLogger,
        TaskObserver,
    )
    from duly.integrations.taskflow.manager import TaskManager
    from duly.integrations.taskflow.once import ScheduledOnce
    from duly.integrations.taskflow.queues import QueueConfig, QueueFullError
    from duly.integrations.taskflow.records import TaskRecord, TaskStatus
    from duly.integrations.taskflow.tasks import ManagedBackgroundTasks
except ModuleNotFoundError as error:
    raise missing(error, "fastapi", "taskflow") from error

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
    "TaskAuthBackend",
    "TaskContext",
    "TaskManager",
    "TaskObserver",
    "TaskRecord",
    "TaskStatus",
    "get_task_context",
    "task_log",
]
