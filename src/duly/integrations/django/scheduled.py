"""`@scheduled_task`: a cron schedule for a task of Django's, whichever backend carries that."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar, Unpack

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections

from duly.api.schedules import ScheduleOptions
from duly.app import Duly
from duly.core.cron import Cron
from duly.defining import define
from duly.errors import BadOption
from duly.integrations.django.app import app_for
from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.codec import GivenArguments
from duly.integrations.django.compat import Task, normalize_json, task_backends
from duly.integrations.django.executions import CARRIER, plain
from duly.registry import Definition
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
        carried = task if backend is None else task.using(backend=backend)
        app, definition = known_to_duly(carried)
        fired = replace(
            definition,
            queue=task.queue_name if queue_name is None else queue_name,
            priority=task.priority if priority is None else priority,
        )
        app.schedules.define(
            name or task.module_path,
            EngineTask(app, fired),
            Cron(cron, timezone),
            normalize_json(list(args or ())),
            normalize_json(kwargs or {}),
            **rules,
        )
        return task

    return decorate


def scheduler_app() -> Duly:
    """Return the application that fires tasks which other backends carry."""
    return app_for("duly.scheduler", {"database": getattr(settings, "DULY_DATABASE", "default")})


def known_to_duly(task: Task) -> tuple[Duly, Definition]:
    """Make a task known to who fires it: its own backend, or the scheduler of all others."""
    carrier = task_backends[task.backend]
    if isinstance(carrier, DulyBackend):
        carrier.validate_task(task)
        return carrier.app, carrier.app.registry.get(task.module_path)
    app = scheduler_app()
    known = app.registry.find(task.module_path)
    if known is not None:
        return app, known
    function = plain(task.func)
    if function is None:
        definition = define(_handing_over(task), name=task.module_path)
    else:
        if task.takes_context:
            raise BadOption(
                f"{task.module_path} takes the context of its backend, which an execution that "
                f"duly vouches for has none of"
            )
        CARRIER.carries(task)
        definition = define(
            _tidied(function), name=task.module_path, carrier=CARRIER, on_crash="hold"
        )
        CARRIER.attach(app)
    definition = replace(definition, codec=GivenArguments(definition.function))
    app.registry.add(definition)
    return app, definition


def _handing_over(task: Task) -> Callable[..., None]:
    """Return what enqueues a task on its own backend, perhaps twice if it is killed meanwhile."""
    signature = inspect.signature(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    @functools.wraps(task.func)
    def hand_over(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the user's own
        try:
            task.enqueue(*args, **kwargs)
        finally:
            close_old_connections()

    hand_over.__signature__ = signature  # type: ignore[attr-defined]
    return hand_over


def _tidied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that leaves no connection of Django's behind."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            try:
                return await function(*args, **kwargs)
            finally:
                await sync_to_async(close_old_connections)()

    else:

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            try:
                return function(*args, **kwargs)
            finally:
                close_old_connections()

    return body
