"""Gives endpoints of one application another `BackgroundTasks`, without a change of theirs.

FastAPI makes that object itself and offers no way to say of which class, so the name that it is
made by is replaced, once for the process; what is made depends on the application that is asked.
"""

from collections.abc import Callable
from contextvars import ContextVar

import fastapi.dependencies.utils
from fastapi import BackgroundTasks, FastAPI
from starlette.types import ASGIApp, Receive, Scope, Send

Make = Callable[[], BackgroundTasks]

_making: ContextVar[Make] = ContextVar("duly_background_tasks", default=BackgroundTasks)


def inject(app: FastAPI, make: Make) -> None:
    """Let the application's endpoints, and those mounted in it, be given what `make` makes."""
    fastapi.dependencies.utils.BackgroundTasks = _made  # type: ignore[attr-defined,assignment]
    app.add_middleware(_Making, make=make)


def _made() -> BackgroundTasks:
    return _making.get()()


class _Making:
    """Says within a request what is made."""

    def __init__(self, app: ASGIApp, make: Make) -> None:
        self._app = app
        self._make = make

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        token = _making.set(self._make)
        try:
            await self._app(scope, receive, send)
        finally:
            _making.reset(token)
