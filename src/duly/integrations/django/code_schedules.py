"""`@scheduled_task`: a cron schedule for a Django task of any backend."""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, Unpack

from asgiref.sync import sync_to_async

from duly import Duly, current
from duly import Task as EngineTask
from duly.api.schedule_options import ScheduleOptions
from duly.core.class_codecs import signature_of
from duly.core.cron import Cron
from duly.errors import BadOption
from duly.integrations.django.app import scheduler_app
from duly.integrations.django.backend import DulyBackend
from duly.integrations.django.codec import PositionKeepingCodec
from duly.integrations.django.executions import (
    CARRIER,
    RAISED,
    name_of,
    once_options,
    retention,
    undecorated,
)
from duly.integrations.django.options import DEFINITION_OPTIONS, options_of
from duly.integrations.django.task_body import close_stale_connections
from duly.integrations.django.task_transaction import with_completion
from duly.integrations.django.tasks_api import TASK_CLASSES, Task, normalize_json
from duly.registry import Definition
from duly.task_options import define

T = TypeVar("T", bound=Task)


@dataclass(frozen=True)
class ScheduleEntry:
    """A schedule defined in code."""

    task: Task
    cron_expression: str
    name: str
    timezone: str = "UTC"
    args: list[Any] = field(default_factory=list)
    kwargs: dict[str, Any] = field(default_factory=dict)
    queue_name: str | None = None
    """None uses the task's own value. The same applies to the next two fields."""
    priority: int | None = None
    backend: str | None = None
    rules: ScheduleOptions = field(default_factory=ScheduleOptions)

    def chosen(self) -> Task:
        """Return the task with this schedule's options. Django raises if the backend refuses it."""
        return self.task.using(
            queue_name=self.queue_name, priority=self.priority, backend=self.backend
        )

    def define(self) -> Duly:
        """Define the schedule in the application that fires it, and return the application."""
        task = self.chosen()
        app, definition = register_task(task)
        fired = replace(definition, queue=task.queue_name, priority=task.priority)
        # django-periodic-tasks enqueues every instant, even while the last run is live.
        rules: ScheduleOptions = {"overlap": "allow", **self.rules}
        app.schedules.define(
            self.name,
            EngineTask(app, fired),
            Cron(self.cron_expression, self.timezone, seconds_field="last"),
            normalize_json(self.args),
            normalize_json(self.kwargs),
            **rules,
        )
        return app


class ScheduleRegistry:
    """Schedules by name. Those of `schedule_registry` fire; others fire once they are synced."""

    def __init__(self, *, is_fired: bool = False) -> None:
        self._is_fired = is_fired
        self._entries: dict[str, ScheduleEntry] = {}

    def register(
        self,
        task: Task,
        *,
        cron: str,
        name: str,
        timezone: str = "UTC",
        args: Sequence[Any] | None = None,
        kwargs: dict[str, Any] | None = None,
        queue_name: str | None = None,
        priority: int | None = None,
        backend: str | None = None,
        **rules: Unpack[ScheduleOptions],
    ) -> None:
        """Add a schedule. Raise an error if it is invalid."""
        Cron(cron, timezone, seconds_field="last")
        called = list(args or ()), dict(kwargs or {})
        entry = ScheduleEntry(
            task, cron, name, timezone, *called, queue_name, priority, backend, rules
        )
        if self._entries.get(name, entry) != entry:
            raise BadOption(
                f"a schedule {name!r} is already registered; give this one another name"
            )
        entry.chosen()
        if self._is_fired:
            entry.define()
        self._entries[name] = entry

    def get_entries(self) -> dict[str, ScheduleEntry]:
        """Return the schedules by name."""
        return dict(self._entries)


schedule_registry = ScheduleRegistry(is_fired=True)
"""The registry that `@scheduled_task` uses by default."""


def scheduled_task(
    *,
    cron: str,
    name: str | None = None,
    registry: ScheduleRegistry | None = None,
    **options: Any,  # noqa: ANN401 - those of `ScheduleRegistry.register`
) -> Callable[[T], T]:
    """Run a task at the times of a cron expression, once per instant for any number of workers.

    Put it above `@task()`. If `cron` has six fields, the last one is seconds, as in croniter.
    Without `name` the schedule has the name of its task. Other options are those of
    `ScheduleRegistry.register` and the rules of a schedule: `misfire="latest"` applies to instants
    that were missed, and `overlap="allow"` to instants that become due while the last run is live.
    By default such instants are enqueued, as in django-periodic-tasks; `overlap="skip"` skips them,
    and `"queue"` lets them wait.
    """

    def decorate(task: T) -> T:
        if not isinstance(task, TASK_CLASSES):
            raise BadOption(
                "put @scheduled_task(…) above @task(), which makes the task that the schedule fires"
            )
        chosen = schedule_registry if registry is None else registry
        chosen.register(task, cron=cron, name=name or task.module_path, **options)
        return task

    return decorate


def sync_code_schedules(registry: ScheduleRegistry | None = None) -> None:
    """Update the schedules in the database from the code, as every worker does when it starts.

    A pause is kept, and instants that became due in the meantime are still handled.
    """
    entries = (schedule_registry if registry is None else registry).get_entries().values()
    for app in {entry.define() for entry in entries} | {scheduler_app()}:
        app.schedules.sync()


def register_task(task: Task) -> tuple[Duly, Definition]:
    """Register a task with the application that fires it: its own backend, or the scheduler's."""
    carrier = task.get_backend()
    if isinstance(carrier, DulyBackend):
        carrier.validate_task(task)
        return carrier.app, carrier.app.registry.get(task.module_path)
    app = scheduler_app()
    name = name_of(task)
    known = app.registry.find(name)
    if known is not None:
        return app, known
    place = {"name": name, "queue": task.queue_name, "priority": task.priority}
    function = undecorated(task.func)
    if function is None:
        # The task's backend provides the other features, so only `redact` applies here.
        secrets = options_of(task, frozenset({"redact"}))
        definition = define(_enqueue_wrapper(task), **place, **secrets)
    else:
        if task.takes_context:
            raise BadOption(
                f"{task.module_path} takes the context of its backend, but an execution that duly "
                "guards has no such context"
            )
        CARRIER.carries(task)
        options = {**once_options(task.func), **options_of(task, DEFINITION_OPTIONS)}
        if options.get("transaction"):
            function = _with_completion(function, app.database)
        definition = define(_closing_connections(function), carrier=CARRIER, **place, **options)
        definition = replace(definition, retention=retention())
    definition.function.task = task  # type: ignore[attr-defined]
    definition = replace(
        definition, codec=PositionKeepingCodec(definition.function, redact=definition.redact)
    )
    app.registry.add(definition)
    return app, definition


def _enqueue_wrapper(task: Task) -> Callable[..., None]:
    """Return a function that enqueues a task on its own backend.

    If its process is killed in between, the task may be enqueued twice.
    """
    signature = signature_of(task.func)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    @functools.wraps(task.func)
    def hand_over(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - the user's own
        fired = scheduler_app().runs.get(current().run_id).record
        try:
            asked = task.using(queue_name=fired.queue, priority=fired.priority)
            asked.enqueue(*args, **kwargs)
        finally:
            close_stale_connections()

    hand_over.__signature__ = signature  # type: ignore[attr-defined]
    return hand_over


def _with_completion(function: Callable[..., Any], database: str) -> Callable[..., Any]:
    """Return a function whose model writes commit together with its completion."""

    @functools.wraps(function)
    def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
        with with_completion(database):
            return function(*args, **kwargs)

    return body


def _closing_connections(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that closes stale Django connections when it ends."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            try:
                with RAISED.capture():
                    return await function(*args, **kwargs)
            finally:
                await sync_to_async(close_stale_connections)()

    else:

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            try:
                with RAISED.capture():
                    return function(*args, **kwargs)
            finally:
                close_stale_connections()

    return body
