"""What endpoints add tasks with: in place of FastAPI's `BackgroundTasks`, and durable."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import BackgroundTasks

from duly.clock import new_id
from duly.compat.fastapi_taskflow.enqueue import AddTaskOptions
from duly.integrations.starlette import is_in_a_request
from duly.observe.logs import log_notice

if TYPE_CHECKING:
    from duly.compat.fastapi_taskflow.manager import TaskManager


class ManagedBackgroundTasks(BackgroundTasks):
    """Adds tasks that are durable when `add_task` returns, so before the response is sent."""

    def __init__(
        self, task_manager: "TaskManager", background_tasks: BackgroundTasks | None = None
    ) -> None:
        super().__init__()
        self._manager = task_manager
        if background_tasks is not None:
            # Whatever else the endpoint puts there is run by Starlette, as ever.
            self.tasks = background_tasks.tasks

    def add_task(  # type: ignore[override]  # says which task it is
        self,
        func: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - those of the task
        idempotency_key: str | None = None,
        tags: dict[str, str] | None = None,
        eager: bool | None = None,
        priority: int | None = None,
        queue: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - those of the task
    ) -> str:
        """Accept a task and return its id; on an event loop prefer `aadd_task`: it takes a commit.

        With an `idempotency_key` that a task of this function has, that one's id is returned,
        unless it has failed. Tasks begin as soon as there is room, `eager` or not; an eager one is
        accepted by a full queue, too. A function that is no task runs after the response, as in
        FastAPI: in this process alone and without a record.
        """
        wish = AddTaskOptions(idempotency_key, tags, eager, priority, queue)
        if self._is_plain(func, wish):
            return self._add_plain(func, args, kwargs)
        return self._manager.add(func, args, kwargs, wish)

    async def aadd_task(
        self,
        func: Callable[..., Any],
        *args: Any,  # noqa: ANN401 - those of the task
        idempotency_key: str | None = None,
        tags: dict[str, str] | None = None,
        eager: bool | None = None,
        priority: int | None = None,
        queue: str | None = None,
        **kwargs: Any,  # noqa: ANN401 - those of the task
    ) -> str:
        """As `add_task`, without blocking the event loop."""
        wish = AddTaskOptions(idempotency_key, tags, eager, priority, queue)
        if self._is_plain(func, wish):
            return self._add_plain(func, args, kwargs)
        return await self._manager.threads.run(self._manager.add, func, args, kwargs, wish)

    def _is_plain(self, func: Callable[..., Any], wish: AddTaskOptions) -> bool:
        """Return whether a function is no task, and Starlette can run it after the response.

        Nothing would keep a key, a tag, a priority or a queue of it.
        """
        is_plain = not self._manager.is_task(func) and wish._replace(eager=None) == AddTaskOptions()
        return is_plain and is_in_a_request()

    def _add_plain(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> str:
        name = getattr(func, "__qualname__", type(func).__qualname__)
        log_notice(
            f"{name} is not a task of its TaskManager, so it runs in this process alone, after the "
            "response and without a record; decorate it with @task_manager.task() to store it"
        )
        super().add_task(func, *args, **kwargs)
        return new_id()
