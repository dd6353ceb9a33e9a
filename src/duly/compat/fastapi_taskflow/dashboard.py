"""The dashboard behind a dependency of FastAPI, which says who asks."""

from functools import partial
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from duly.app import Duly
from duly.compat.fastapi_taskflow.auth import Dependency

_VIEWER = "duly.viewer"
"""Where in the scope of a request the dependency's answer lies; no request can put it there."""


def add_dashboard(
    app: FastAPI, duly: Duly, path: str, *, who: Dependency | None, options: dict[str, Any]
) -> None:
    """Serve the dashboard below a path to those whom the dependency lets in, who may act.

    Without one only this machine may look. Where the extra `web` is not installed, it says so.
    """
    try:
        from duly.dashboard import dashboard  # noqa: PLC0415 - of an extra
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
    """Say nothing of who asks."""


def _viewer_of(request: Request) -> str:
    return str(request.scope[_VIEWER])


class _DashboardResponse(Response):
    """Leaves the answer to the pages, as if they were mounted here."""

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
