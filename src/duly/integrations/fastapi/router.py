"""A small JSON API for runs and schedules, for custom front ends."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query

from duly import Duly, Filter
from duly.integrations.fastapi.rejections import (
    ErrorResponseRoute,
    require_auth,
    require_same_origin,
)
from duly.integrations.fastapi.schemas import (
    ActionRequest,
    CancelResult,
    RetryRequest,
    RunDetail,
    RunPage,
    RunSummary,
    ScheduleDetail,
    ScheduleSummary,
    detail_of,
    schedule_detail_of,
    schedule_of,
    summary_of,
)
from duly.limits import PAGE, PAGE_DEFAULT, SCAN_RUNS

_UPCOMING = 5
_RECENT = 20

Auth = Callable[..., Any]
"""A dependency that returns the caller. It refuses by raising or by returning None, "" or False."""


def duly_router(
    app: Duly,
    *,
    auth: Auth | None,
    write: bool = False,
    show_arguments: bool = False,
    allowed_origins: Sequence[str] = (),
) -> APIRouter:
    """Return routes that show runs and schedules and, with `write`, change them.

    `auth` guards every route. With None, every client that reaches the routes may use them.
    Arguments and results are omitted unless `show_arguments` is set; redacted arguments are always
    omitted. Pages of `allowed_origins` may change things too, in addition to the application's own
    origin.
    """
    who = _allow_all if auth is None else require_auth(auth)
    router = APIRouter(route_class=ErrorResponseRoute, tags=["duly"], dependencies=[Depends(who)])
    _add_read_routes(router, app, show_arguments=show_arguments)
    if write:
        acting = APIRouter(
            route_class=ErrorResponseRoute,
            dependencies=[Depends(require_same_origin(frozenset(allowed_origins)))],
        )
        _add_action_routes(acting, app, who, show_arguments=show_arguments)
        router.include_router(acting)
    return router


def _allow_all() -> None:
    return None


def _add_read_routes(router: APIRouter, app: Duly, *, show_arguments: bool) -> None:
    @router.get("/runs")
    def list_runs(
        state: Annotated[list[str] | None, Query()] = None,
        task: str | None = None,
        queue: str | None = None,
        tag: Annotated[str | None, Query(description="name=value")] = None,
        since: Annotated[datetime | None, Query(description="with its time zone")] = None,
        limit: Annotated[int, Query(ge=1, le=PAGE)] = PAGE_DEFAULT,
        cursor: str | None = None,
    ) -> RunPage:
        """Return a page of runs, newest first.

        With a filter that matches few of many runs, a page may be short or empty. There are more
        runs while the page has a cursor.
        """
        which = Filter(state, task, queue, tag, since)
        page = app.runs.page(which, limit=limit, cursor=cursor, scan=SCAN_RUNS)
        return RunPage(runs=[summary_of(run.record) for run in page], cursor=page.cursor)

    @router.get("/runs/{run_id}")
    def get_run(run_id: str) -> RunDetail:
        """Return a run with its attempts, steps and logs."""
        return detail_of(app.runs.get(run_id), app.registry, show_arguments=show_arguments)

    @router.get("/schedules")
    def list_schedules(*, removed: bool = False) -> list[ScheduleSummary]:
        """Return the schedules by name."""
        return [schedule_of(schedule) for schedule in app.schedules.list(removed=removed)]

    @router.get("/schedules/{name:path}")
    def get_schedule(name: str) -> ScheduleDetail:
        """Return a schedule, its next instants and its last firings."""
        schedule = app.schedules.get(name)
        upcoming = app.schedules.next(name, _UPCOMING)
        return schedule_detail_of(schedule, upcoming, app.schedules.firings(name, limit=_RECENT))


def _add_action_routes(router: APIRouter, app: Duly, who: Auth, *, show_arguments: bool) -> None:
    def actor(found: Annotated[object, Depends(who)]) -> str | None:
        return found if isinstance(found, str) else None

    Actor = Annotated[str | None, Depends(actor)]  # noqa: N806 - a type

    @router.post("/runs/{run_id}/retry")
    def retry_run(run_id: str, how: RetryRequest, actor: Actor) -> RunDetail:
        """Queue a final run again, optionally with other arguments."""
        arguments = None
        if how.arguments is not None:
            codec = app.registry.get(app.runs.get(run_id).record.task).codec
            arguments = codec.from_json(how.arguments.args, how.arguments.kwargs)
        run = app.runs.retry(
            run_id,
            actor=actor,
            reason=how.reason,
            arguments=arguments,
            fresh_effects=how.fresh_effects,
        )
        return detail_of(run, app.registry, show_arguments=show_arguments)

    @router.post("/runs/{run_id}/cancel")
    def cancel_run(run_id: str, why: ActionRequest, actor: Actor) -> CancelResult:
        """Cancel a waiting run, or ask a running one to stop."""
        return CancelResult(answer=app.runs.cancel(run_id, actor=actor, reason=why.reason))

    @router.post("/schedules/{name:path}/pause")
    def pause_schedule(name: str, why: ActionRequest, actor: Actor) -> ScheduleSummary:
        """Skip due instants until the schedule is resumed."""
        app.schedules.pause(name, actor=actor, reason=why.reason)
        return schedule_of(app.schedules.get(name))

    @router.post("/schedules/{name:path}/resume")
    def resume_schedule(name: str, why: ActionRequest, actor: Actor) -> ScheduleSummary:
        """Let a schedule fire again."""
        app.schedules.resume(name, actor=actor, reason=why.reason)
        return schedule_of(app.schedules.get(name))

    @router.post("/schedules/{name:path}/run")
    def run_schedule(name: str, actor: Actor) -> RunSummary:
        """Fire the schedule once, in addition to its due instants."""
        return summary_of(app.schedules.run_now(name, actor=actor).record)
