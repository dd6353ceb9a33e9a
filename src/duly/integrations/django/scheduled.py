"""`@scheduled_task`: a cron schedule for a task of Django's, fired by duly's workers."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from duly.api.schedules import ScheduleOptions
from duly.core.cron import Cron
from duly.errors import BadOption
from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.compat import Task, normalize_json, task_backends
from duly.task import Task as EngineTask

T = TypeVar("T", bound=Task)


def scheduled_task(
    *,
    cron: str,
    name: str | None = None,
    timezone: str = "UTC",
    args: Sequence[Any] | None = None,
    kwargs: dict[str, Any] | None = None,
    queue_name: str | None = None,
    priority: int | None = None,
    backend: str | None = None,
    **rules: Unpack[ScheduleOptions],
) -> Callable[[T], T]:
    """Run a task at the times of a cron expression, once for each, however many workers look.

    It goes above `@task()`. Without `name` the schedule is named as its task. `rules` say what is
    done about instants that were missed (`misfire="latest"`) or find the last run still live.
    """

    def decorate(task: T) -> T:
        if not isinstance(task, Task):
            raise BadOption("@scheduled_task(…) goes above @task(), which makes the task it fires")
        carrier = task_backends[backend or task.backend]
        if not isinstance(carrier, DulyBackend):
            raise BadOption(
                f"backend {backend or task.backend!r} is a {type(carrier).__name__}; duly fires "
                f"tasks that it carries itself"
            )
        carrier.validate_task(task)
        definition = carrier.app.registry.get(task.module_path)
        fired = replace(
            definition,
            queue=task.queue_name if queue_name is None else queue_name,
            priority=task.priority if priority is None else priority,
        )
        carrier.app.schedules.define(
            name or task.module_path,
            EngineTask(carrier.app, fired),
            Cron(cron, timezone),
            normalize_json(list(args or ())),
            normalize_json(kwargs or {}),
            **rules,
        )
        return task

    return decorate
