"""A dependency that enqueues tasks from a request, similar to FastAPI's `BackgroundTasks`."""

from typing import Annotated, Any, ParamSpec, Self, TypeVar

from fastapi import Depends
from starlette.requests import HTTPConnection

from duly import Run, Task
from duly.errors import BadOption
from duly.integrations.starlette import ServedApp, served_app

P = ParamSpec("P")
R = TypeVar("R")


class Tasks:
    """Enqueues tasks. They are durable when `add_task` returns, before the response is sent.

    With a `connection`, they become durable when its transaction is committed.
    """

    def __init__(self, serving: tuple[ServedApp, ...], **options: Any) -> None:  # noqa: ANN401
        self._serving = serving
        self._options = options

    def using(self, **options: Any) -> Self:  # noqa: ANN401 - those of `Task.using`
        """Return a copy with options for the tasks added through it: `connection=db`, `key=…`.

        With a database session as connection, the tasks become part of its transaction.
        """
        return type(self)(self._serving, **{**self._options, **options})

    def add_task(self, func: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Enqueue a run of a task.

        This blocks for one commit, so prefer `aadd_task` on an event loop.
        """
        self._check(func)
        return func.using(**self._options).enqueue(*args, **kwargs)

    async def aadd_task(self, func: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Run[R]:
        """Enqueue a run of a task without blocking the event loop."""
        self._check(func)
        return await func.using(**self._options).aenqueue(*args, **kwargs)

    def _check(self, func: Task[P, R]) -> None:
        """Raise BadOption unless `func` is a task of a Duly that this web application started."""
        if not isinstance(func, Task):
            raise BadOption(
                f"{func!r} is not a task, and only tasks outlive this process: decorate it with "
                "@app.task"
            )
        served = (each.app.registry.find(func.name) for each in self._serving)
        if not any(definition is func.definition for definition in served):
            raise BadOption(
                f"task {func.name!r} belongs to a Duly that this web application has not started: "
                "add the lifespan of that Duly, too, e.g. duly_lifespan(other, inner=…)"
            )


def _tasks(connection: HTTPConnection) -> Tasks:
    return Tasks(served_app(connection))


DulyTasks = Annotated[Tasks, Depends(_tasks)]
"""The type for a parameter of an endpoint: `async def create(tasks: DulyTasks)`."""
