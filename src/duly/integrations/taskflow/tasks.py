"""What endpoints add tasks with: in place of FastAPI's `BackgroundTasks`, and durable."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastapi import BackgroundTasks

from duly.integrations.taskflow.accepting import Wish

if TYPE_CHECKING:
    from duly.integrations.taskflow.manager import TaskManager


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
        accepted by a full queue, too.
        """
        wish = Wish(idempotency_key, tags, eager, priority, queue)
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
        wish = Wish(idempotency_key, tags, eager, priority, queue)
        return await self._manager.threads.run(self._manager.add, func, args, kwargs, wish)
