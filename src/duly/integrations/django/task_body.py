"""The function that workers run for a Django task, with the behavior that Django promises."""

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections

from duly import current
from duly.core.class_codecs import signature_of
from duly.integrations.django.task_exceptions import RecentExceptions
from duly.integrations.django.tasks_api import Task, TaskContext, TaskResult, normalize_json
from duly.registry import Definition

StartedCallback = Callable[[str], TaskResult]
"""Sends Django's signal that a run has started, and returns the run's result."""


RECENT_EXCEPTIONS = RecentExceptions()
"""The exceptions of tasks on duly's own backends."""
ON_EXTERNAL_CONNECTION: ContextVar[bool] = ContextVar("on_callers_connection", default=False)
"""Whether tasks run on the connection of the calling code, which may be in a transaction."""


def close_stale_connections() -> None:
    """Close connections of this thread that are broken or too old.

    A connection whose transaction ends with the run is closed after that, if necessary.
    """
    if ON_EXTERNAL_CONNECTION.get():
        return
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


def body_of(
    task: Task,
    begun: StartedCallback,
    around: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Callable[..., Any]:
    """Return the function that workers run for a task. `around` wraps a plain function.

    Connections that the previous task left broken or too old are closed before the call, and its
    own after it.
    """
    function = task.func
    signature = signature_of(function)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    def context() -> tuple[TaskContext, ...]:
        result = begun(current().run_id)
        return (TaskContext(task_result=result),) if task.takes_context else ()

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            # Async code uses the connections of the thread that Django's own sync calls use.
            await sync_to_async(close_stale_connections)()
            try:
                first = await sync_to_async(context)()
                with RECENT_EXCEPTIONS.capture():
                    return normalize_json(await function(*first, *args, **kwargs))
            finally:
                await sync_to_async(close_stale_connections)()

    else:

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            close_stale_connections()
            try:
                first = context()
                with RECENT_EXCEPTIONS.capture(), around():
                    return normalize_json(function(*first, *args, **kwargs))
            finally:
                close_stale_connections()

    body.__signature__ = signature  # type: ignore[attr-defined]
    body.task = task  # type: ignore[attr-defined]
    return body


def task_of(definition: Definition) -> Task:
    """Return the task that a definition was created for."""
    return definition.function.task  # type: ignore[attr-defined]
