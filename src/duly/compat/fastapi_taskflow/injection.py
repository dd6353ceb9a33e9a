"""Gives endpoints of one application another `BackgroundTasks`, without a change of theirs.

FastAPI makes that object itself and offers no way to say of which class, so the name that it is
made by is replaced, once for the process; what is made depends on the application that is asked.
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
    """Let the application's endpoints, and those mounted in it, be given what `make` makes."""
    fastapi.dependencies.utils.BackgroundTasks = _make_tasks  # type: ignore[attr-defined,assignment]
    app.add_middleware(_InjectionMiddleware, make=make)


def check_parameters(app: FastAPI) -> None:
    """Refuse endpoints that would be given FastAPI's own tasks, which die with the process."""
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
    except (NameError, TypeError):  # Names of a function's own, or an object that is called.
        return {}


def _make_tasks() -> BackgroundTasks:
    return _task_factory.get()()


class _InjectionMiddleware:
    """Says within a request what is made."""

    def __init__(self, app: ASGIApp, make: TasksFactory) -> None:
        self._app = app
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _task_factory.set(self._make)
        try:
            await self._app(scope, receive, send)
        finally:
            _task_factory.reset(token)
