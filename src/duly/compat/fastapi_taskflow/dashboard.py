"""The dashboard with a FastAPI dependency that identifies the viewer."""

from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duly import Duly
from duly.compat.fastapi_taskflow.auth import Dependency

_VIEWER = "duly.viewer"
"""The key in the request's scope for the result of the dependency. No request can set it."""


def add_dashboard(
    app: FastAPI, duly: Duly, path: str, *, who: Dependency | None, options: dict[str, Any]
) -> None:
    """Serve the dashboard below a path to viewers that the dependency admits. They may also act.

    Without a dependency, only this machine may view it. If the extra `web` is not installed, the
    path returns an explanation.
    """
    try:
        from duly.dashboard import dashboard  # noqa: PLC0415 - from an extra
    except ImportError as error:
        missing = HTTPException(404, str(error))
        app.add_api_route(path, partial(_refuse, missing), include_in_schema=False)
        return
    pages = dashboard(duly, auth=_viewer_of if who else None, write=who is not None, **options)

    async def serve(viewer: Annotated[object, Depends(who or _no_viewer)]) -> Response:
        return _DashboardResponse(
            pages, path, viewer if isinstance(viewer, str) and viewer else "anonymous"
        )

    methods = ["GET", "HEAD", "POST"]
    for pattern in (path, f"{path}/{{rest:path}}"):
        app.add_api_route(pattern, serve, methods=methods, include_in_schema=False)


def _refuse(why: HTTPException) -> None:
    raise why


def _no_viewer() -> None:
    """Return no viewer."""


def _viewer_of(request: Request) -> str:
    return str(request.scope[_VIEWER])


class _DashboardResponse(Response):
    """Lets the dashboard answer as if it were mounted at this path."""

    def __init__(self, pages: ASGIApp, path: str, viewer: str) -> None:
        super().__init__()
        self._pages = pages
        self._path = path
        self._viewer = viewer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root = scope.get("root_path", "") + self._path
        below = {**scope, "root_path": root, _VIEWER: self._viewer}
        if scope["path"] == root:
            below["path"] = f"{root}/"
        await self._pages(below, receive, send)
