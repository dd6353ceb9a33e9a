"""The dashboard beside a manager's routes, for whom their `auth` lets in."""

from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from fastapi.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duly.integrations.taskflow.auth import Dependency
from duly.integrations.taskflow.desk import name_of
from duly.integrations.taskflow.manager import TaskManager

PATH = "/dashboard"
_VIEWER = "duly.viewer"


def dashboard_router(
    manager: TaskManager,
    prefix: str,
    *,
    who: Dependency,
    writes: bool,
    title: str,
    shows_arguments: bool,
) -> APIRouter:
    """Return the pages; `who` is a dependency of FastAPI's, which no mounted application has."""
    router = APIRouter(prefix=f"{prefix}{PATH}", include_in_schema=False)
    Actor = Annotated[object, Depends(who)]  # noqa: N806 - a type
    try:
        pages = _pages(manager, writes=writes, title=title, shows_arguments=shows_arguments)
    except ImportError as error:
        missing = str(error)

        @router.get("")
        def say(_: Actor) -> None:
            raise HTTPException(404, missing)

        return router

    @router.get("")
    def lead(request: Request) -> RedirectResponse:
        return RedirectResponse(f"{_root(request.scope, prefix)}/")

    @router.api_route("/{page:path}", methods=["GET", "HEAD", "POST"])
    def show(actor: Actor) -> _Page:
        return _Page(pages, prefix, name_of(actor))

    return router


def _pages(manager: TaskManager, *, writes: bool, title: str, shows_arguments: bool) -> ASGIApp:
    from duly.dashboard import Viewer, dashboard  # noqa: PLC0415 - of an extra

    def viewer(request: Request) -> Viewer:
        return Viewer(request.scope[_VIEWER])

    return dashboard(
        manager.duly, auth=viewer, write=writes, title=title, show_arguments=shows_arguments
    )


class _Page(Response):
    """An answer that the dashboard gives itself."""

    def __init__(self, pages: ASGIApp, prefix: str, viewer: str) -> None:
        super().__init__()
        self._pages = pages
        self._prefix = prefix
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        seen = {"root_path": _root(scope, self._prefix), "path_params": {}, _VIEWER: self._viewer}
        await self._pages({**scope, **seen}, receive, send)


def _root(scope: Scope, prefix: str) -> str:
    return f"{scope.get('root_path', '').rstrip('/')}{prefix}{PATH}"
