"""Passes another `BackgroundTasks` to the endpoints of an application without changing them.

FastAPI creates that object itself and has no option for its class. This module therefore replaces
the name of the class once per process. The object depends on the application that handles the
request.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import get_type_hints

import fastapi.dependencies.utils
from fastapi import BackgroundTasks, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from duly.compat.fastapi_taskflow.tasks import ManagedBackgroundTasks
from duly.errors import BadOption

TasksFactory = Callable[[], BackgroundTasks]

_task_factory: ContextVar[TasksFactory] = ContextVar(
    "duly_background_tasks", default=BackgroundTasks
)


def inject(app: FastAPI, make: TasksFactory) -> None:
    """Pass the result of `make` to the endpoints of the application and of those mounted in it."""
    fastapi.dependencies.utils.BackgroundTasks = _make_tasks  # type: ignore[attr-defined,assignment]
    app.add_middleware(_InjectionMiddleware, make=make)


def check_parameters(app: FastAPI) -> None:
    """Refuse endpoints that would receive FastAPI's own tasks, which end with the process."""
    classes: list[object] = [middleware.cls for middleware in app.user_middleware]
    if _InjectionMiddleware in classes:
        return
    for route in app.routes:
        if isinstance(route, APIRoute):
            _check(route.dependant, route.path)


def _check(dependant: Dependant, path: str) -> None:
    name = dependant.background_tasks_param_name
    if name is not None and _annotations(dependant).get(name) is ManagedBackgroundTasks:
        raise BadOption(
            f"{path}: a parameter {name!r} of ManagedBackgroundTasks needs "
            "Depends(task_manager.get_tasks), or auto_install=True for the application: otherwise "
            "FastAPI passes tasks that end with this process"
        )
    for inner in dependant.dependencies:
        _check(inner, path)


def _annotations(dependant: Dependant) -> dict[str, object]:
    try:
        return get_type_hints(dependant.call)
    except (NameError, TypeError):  # Names local to a function, or a callable object.
        return {}


def _make_tasks() -> BackgroundTasks:
    return _task_factory.get()()


class _InjectionMiddleware:
    """Sets the factory during each request."""

    def __init__(self, app: ASGIApp, make: TasksFactory) -> None:
        self._app = app
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _task_factory.set(self._make)
        try:
            await self._app(scope, receive, send)
        finally:
            _task_factory.reset(token)
