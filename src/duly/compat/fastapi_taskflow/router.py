"""The routes: tasks as JSON, and operator actions.

Endpoints are plain functions, so FastAPI runs them on threads, where they may wait for the store.
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, HTTPException, Query, Request, Response
from pydantic import BaseModel, Field, PositiveInt

from duly.compat.fastapi_taskflow.auth import Dependency, is_in_process
from duly.compat.fastapi_taskflow.manager import TaskManager
from duly.compat.fastapi_taskflow.operations import (
    TaskOperations,
    TaskStatusConflict,
    without_secrets,
)
from duly.compat.fastapi_taskflow.records import TaskStatus
from duly.errors import BadOption
from duly.integrations.fastapi.rejections import ErrorResponseRoute, require_same_origin
from duly.limits import PAGE, PAGE_DEFAULT

_LONGEST = 1_000
_MOST_UNITS = 100_000
NEXT = "X-Next-Cursor"
"""The response header with the cursor of the next page."""


class BulkRetry(BaseModel):
    """The tasks to retry."""

    task_ids: Annotated[list[str], Field(max_length=_LONGEST)]


class QueueLimitsBody(BaseModel):
    """The new limits of a queue. null means no limit."""

    concurrency: PositiveInt | None = None
    max_size: PositiveInt | None = None


def task_router(
    manager: TaskManager,
    prefix: str,
    *,
    who: Dependency,
    is_open: bool,
    shows_arguments: bool,
) -> APIRouter:
    """Return the routes of a manager. If they are open to every client, they show no secrets."""
    operations = TaskOperations(manager, shows_arguments=shows_arguments)
    router = APIRouter(
        prefix=prefix, route_class=ErrorResponseRoute, tags=["tasks"], dependencies=[Depends(who)]
    )
    _add_read_routes(router, operations, manager, is_open=is_open)
    acting = APIRouter(
        route_class=ErrorResponseRoute, dependencies=[Depends(require_same_origin(frozenset()))]
    )
    _add_action_routes(acting, operations, who)
    router.include_router(acting)
    return router


def _add_read_routes(
    router: APIRouter, operations: TaskOperations, manager: TaskManager, *, is_open: bool
) -> None:
    def sees_secrets(request: Request) -> bool:
        return not is_open or is_in_process(request)

    SeesSecrets = Annotated[bool, Depends(sees_secrets)]  # noqa: N806 - a type

    @router.get("", summary="List tasks, newest first")
    def list_tasks(
        response: Response,
        secrets: SeesSecrets,
        status: TaskStatus | None = None,
        func_name: str | None = None,
        queue: str | None = None,
        tag: Annotated[str | None, Query(description="name=value")] = None,
        since: Annotated[str, Query(description="<N>h, <N>d or all")] = "all",
        limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE_DEFAULT,
        cursor: Annotated[str | None, Query(description=f"{NEXT} of the previous page")] = None,
    ) -> list[dict[str, Any]]:
        """Return a page of tasks.

        With a filter that matches few of many tasks, a page may be short or empty. There are more
        tasks while the response has a cursor.
        """
        try:
            page, following = operations.page(
                status, func_name, queue=queue, tag=tag, since=since, limit=limit, cursor=cursor
            )
        except BadOption as refused:
            raise HTTPException(400, str(refused)) from None
        if following is not None:
            response.headers[NEXT] = following
        return page if secrets else [without_secrets(task) for task in page]

    @router.get("/metrics", summary="Count tasks by status")
    def get_metrics() -> dict[str, Any]:
        return operations.metrics()

    @router.get("/queues", summary="Show the named queues")
    def list_queues() -> list[dict[str, Any]]:
        return manager.queue_stats()

    @router.get("/audit", summary="Show operator actions, newest first")
    def get_audit(
        secrets: SeesSecrets,
        limit: Annotated[int, Query(ge=1, le=_LONGEST)] = PAGE_DEFAULT,
    ) -> list[dict[str, Any]]:
        if not secrets:
            raise HTTPException(
                403, "only users that TaskAdmin(auth=…) accepts can see the audit log"
            )
        return operations.audit(limit)

    # After the other routes, which its pattern would match too.
    @router.get("/{task_id}", summary="Show one task, with its log")
    def get_task(task_id: str, secrets: SeesSecrets) -> dict[str, Any]:
        return operations.get(task_id) if secrets else without_secrets(operations.get(task_id))


def _add_action_routes(router: APIRouter, operations: TaskOperations, who: Dependency) -> None:
    Actor = Annotated[object, Depends(who)]  # noqa: N806 - a type

    @router.patch("/queues/{queue_name}", summary="Change the limits of a queue in this process")
    def update_queue(queue_name: str, body: QueueLimitsBody, actor: Actor) -> dict[str, Any]:
        try:
            return operations.limit_queue(queue_name, body.concurrency, body.max_size, actor)
        except KeyError as unknown:
            raise HTTPException(404, str(unknown.args[0])) from None
        except BadOption as refused:
            raise HTTPException(400, str(refused)) from None

    @router.post("/bulk-retry", summary="Retry tasks that failed or were interrupted")
    def bulk_retry(body: BulkRetry, actor: Actor) -> dict[str, Any]:
        return operations.retry_all(body.task_ids, actor)

    @router.post("/retry-failed", summary="Retry all tasks that failed within a period")
    def retry_failed(
        actor: Actor,
        since: Annotated[str, Query(description="<N>h, <N>d or all")] = "6h",
        func_name: str | None = None,
    ) -> dict[str, Any]:
        try:
            return operations.retry_failed(since, func_name, actor)
        except BadOption as refused:
            raise HTTPException(400, str(refused)) from None

    @router.delete("/history", summary="Delete tasks that ended before a time")
    def delete_history(
        actor: Actor,
        value: Annotated[int, Query(gt=0, le=_MOST_UNITS)],
        unit: Annotated[str, Query(description="min, hour or day")],
    ) -> dict[str, int]:
        try:
            return operations.delete_history(value, unit, actor)
        except BadOption as refused:
            raise HTTPException(400, str(refused)) from None

    @router.post("/{task_id}/cancel", summary="Cancel a waiting or running task")
    def cancel_task(task_id: str, actor: Actor) -> dict[str, Any]:
        return _as_response(lambda: operations.cancel(task_id, actor))

    @router.post("/{task_id}/retry", summary="Retry a task that failed or was interrupted")
    def retry_task(task_id: str, actor: Actor) -> dict[str, Any]:
        return _as_response(lambda: operations.retry(task_id, actor))


def _as_response(act: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return act()
    except TaskStatusConflict as refused:
        raise HTTPException(400, str(refused)) from None
