"""Serves tasks over HTTP."""

from collections.abc import Collection, Sequence

from fastapi import FastAPI

from duly.compat.fastapi_taskflow.auth import Dependency, Pair, TaskAuthBackend, auth_dependency
from duly.compat.fastapi_taskflow.dashboard import add_dashboard
from duly.compat.fastapi_taskflow.manager import TaskManager
from duly.compat.fastapi_taskflow.router import task_router
from duly.core.amounts import check_seconds
from duly.errors import BadOption

_TOKEN_EXPIRY = 86_400


class TaskAdmin:
    """Connects a manager to an application and adds its routes. The object need not be kept."""

    def __init__(
        self,
        app: FastAPI,
        task_manager: TaskManager,
        path: str = "/tasks",
        *,
        display_func_args: bool = False,
        auto_install: bool = False,
        auth: Pair | Sequence[Pair] | TaskAuthBackend | Dependency | None = None,
        token_expiry: int = _TOKEN_EXPIRY,
        secret_key: str | None = None,  # noqa: ARG002 - there are no sessions to sign
        poll_interval: float = 30.0,
        title: str = "duly",
        retention_days: float | None = None,
        hosts: Collection[str] | None = None,
    ) -> None:
        if token_expiry != _TOKEN_EXPIRY:
            raise BadOption(
                "token_expiry is not supported: browsers send a name and a password with every "
                "request, so no session can expire; give auth= a dependency of your own with its "
                "own expiry"
            )
        # The value is not used: the dashboard receives changes at once.
        check_seconds("poll_interval", poll_interval)
        if retention_days is not None:
            task_manager.keep_history(retention_days)
        who = auth_dependency(auth, title, hosts)
        # Added before the routes, whose pattern for one task would match the dashboard's path too.
        add_dashboard(
            app,
            task_manager.duly,
            f"{path}/dashboard",
            who=None if auth is None else who,
            options={"show_arguments": display_func_args, "title": title, "hosts": hosts},
        )
        app.include_router(
            task_router(
                task_manager,
                path,
                who=who,
                is_open=auth is None,
                shows_arguments=display_func_args,
            )
        )
        if auto_install:
            task_manager.install(app)
        else:
            task_manager.init_app(app)
