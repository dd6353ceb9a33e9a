"""The body of a run: Django's task function, with what Django promises around it."""

import functools
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections

from duly.context import current
from duly.integrations.django.compat import Task, TaskContext, TaskResult, normalize_json
from duly.registry import Definition

Begun = Callable[[str], TaskResult]
"""Tells Django that a run has begun, and returns it as Django sees it."""


ON_CALLERS_CONNECTION: ContextVar[bool] = ContextVar("on_callers_connection", default=False)
"""Whether bodies run on the connection of whoever has them run, who may be in a transaction."""


def _tidy() -> None:
    if not ON_CALLERS_CONNECTION.get():
        close_old_connections()


def body_of(task: Task, begun: Begun) -> Callable[..., Any]:
    """Return the function that workers run for a task.

    Connections that the last task left broken or too old are closed before it, and its own after.
    """
    function = task.func
    signature = inspect.signature(function)
    if task.takes_context:
        signature = signature.replace(parameters=list(signature.parameters.values())[1:])

    def context() -> tuple[TaskContext, ...]:
        result = begun(current().run_id)
        return (TaskContext(task_result=result),) if task.takes_context else ()

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            # The connections of async code are those of the thread that Django's own calls use.
            await sync_to_async(_tidy)()
            try:
                first = await sync_to_async(context)()
                return normalize_json(await function(*first, *args, **kwargs))
            finally:
                await sync_to_async(_tidy)()

    else:

        @functools.wraps(function)
        def body(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            _tidy()
            try:
                return normalize_json(function(*context(), *args, **kwargs))
            finally:
                _tidy()

    body.__signature__ = signature  # type: ignore[attr-defined]
    body.task = task  # type: ignore[attr-defined]
    return body


def task_of(definition: Definition) -> Task:
    """Return the task that a definition was made for."""
    return definition.function.task  # type: ignore[attr-defined]
