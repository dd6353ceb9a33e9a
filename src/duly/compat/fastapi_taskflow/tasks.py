"""A durable replacement for FastAPI's `BackgroundTasks`, with which endpoints add tasks."""

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
    """Adds tasks. They are durable when `add_task` returns, before the response is sent."""

    def __init__(
        self, task_manager: "TaskManager", background_tasks: BackgroundTasks | None = None
    ) -> None:
        super().__init__()
        self._manager = task_manager
        if background_tasks is not None:
            # Starlette runs other functions that the endpoint adds there, as usual.
            self.tasks = background_tasks.tasks

    def add_task(  # type: ignore[override]  # returns the task's id
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
        """Enqueue a task and return its id. It blocks for a commit: prefer `aadd_task` on a loop.

        If a task of this function has the same `idempotency_key` and has not failed, its id is
        returned. Tasks start as soon as there is room, `eager` or not; a full queue still accepts
        an eager one. A function that is not a task runs after the response, as in FastAPI: only in
        this process and without a record.
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
        """Do the same as `add_task`, without blocking the event loop."""
        wish = AddTaskOptions(idempotency_key, tags, eager, priority, queue)
        if self._is_plain(func, wish):
            return self._add_plain(func, args, kwargs)
        return await self._manager.threads.run(self._manager.add, func, args, kwargs, wish)

    def _is_plain(self, func: Callable[..., Any], wish: AddTaskOptions) -> bool:
        """Return whether a function is not a task, so Starlette can run it after the response.

        Such a call cannot have a key, a tag, a priority or a queue.
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
