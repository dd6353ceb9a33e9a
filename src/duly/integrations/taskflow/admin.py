"""Serves tasks over HTTP."""

from collections.abc import Sequence

from fastapi import FastAPI

from duly.errors import BadOption
from duly.integrations.taskflow.auth import Dependency, Pair, TaskAuthBackend, guard
from duly.integrations.taskflow.manager import TaskManager
from duly.integrations.taskflow.pages import dashboard_router
from duly.integrations.taskflow.router import task_router

_POLL_SECONDS = 30.0


class TaskAdmin:
    """Gives a manager to an application, with its routes; there is no need to keep this object."""

    def __init__(
        self,
        app: FastAPI,
        task_manager: TaskManager,
        path: str = "/tasks",
        *,
        display_func_args: bool = False,
        auto_install: bool = False,
        auth: Pair | Sequence[Pair] | TaskAuthBackend | Dependency | None = None,
        token_expiry: int = 86_400,  # noqa: ARG002 - HTTP Basic has no sessions that could expire
        secret_key: str | None = None,  # noqa: ARG002 - nor any to sign
        poll_interval: float = _POLL_SECONDS,
        title: str = "duly",
        retention_days: float | None = None,
    ) -> None:
        if poll_interval != _POLL_SECONDS:
            raise BadOption("the dashboard looks every second by itself; leave poll_interval out")
        if retention_days is not None:
            task_manager.keep_history(retention_days)
        who = guard(auth, title)
        pages = dashboard_router(
            task_manager,
            path,
            who=who,
            writes=auth is not None,
            title=title,
            shows_arguments=display_func_args,
        )
        app.include_router(pages)  # Before the routes, one of which would match its address.
        app.include_router(
            task_router(task_manager, path, who=who, shows_arguments=display_func_args)
        )
        if auto_install:
            task_manager.install(app)
        else:
            task_manager.init_app(app)
