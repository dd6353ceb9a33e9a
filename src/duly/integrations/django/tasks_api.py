"""Imports `django.tasks`, or the backport `django_tasks` for earlier Django versions."""

from typing import Any

try:
    from django.tasks import task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:  # Django before 6.0
    # The import registers the check of backends. Django 6 always registers it.
    from django_tasks import checks as _checks  # noqa: F401
    from django_tasks import exceptions as _exceptions
    from django_tasks import task_backends
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task, TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.signals import task_enqueued, task_finished, task_started
    from django_tasks.utils import normalize_json

    # Releases after 0.12 use Django's name.
    InvalidTask = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError

try:
    from django_tasks.base import Task as _BackportedTask
except ImportError:
    TASK_CLASSES: tuple[type[Any], ...] = (Task,)
else:
    TASK_CLASSES = (Task, _BackportedTask)
"""The classes of tasks. Some backends know only the backport, even if Django has its own tasks."""

__all__ = [
    "TASK_CLASSES",
    "BaseTaskBackend",
    "InvalidTask",
    "Task",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "task_backends",
    "task_enqueued",
    "task_finished",
    "task_started",
]
