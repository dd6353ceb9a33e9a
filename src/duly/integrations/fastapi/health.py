"""`/livez` and `/readyz`, for those who restart processes and route requests to them."""

import asyncio
import threading
from typing import Literal

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from duly.apart import apart
from duly.errors import DulyError
from duly.integrations.starlette import Serving, serving

_PATIENCE_SECONDS = 3.0
_MOST_ASKING = 8
"""Probes that wait for the store at once; each keeps a thread for as long as that hangs."""


class Health(BaseModel):
    """Whether all is well, and what is not."""

    status: Literal["ok", "unavailable"]
    problems: list[str] = []


def health_router() -> APIRouter:
    """Return the two probes; they say nothing that a stranger must not know."""
    router = APIRouter(tags=["health"])
    room = threading.Semaphore(_MOST_ASKING)

    @router.get("/livez")
    async def livez() -> Health:
        """Answer while the event loop turns: whoever gets no answer should restart the process."""
        return Health(status="ok")

    @router.get("/readyz", responses={503: {"model": Health}})
    async def readyz(request: Request, response: Response) -> Health:
        """Say whether the store answers and the worker beside the application works."""
        try:
            looks = [_problem(each, room) for each in serving(request)]
        except DulyError:
            problems = ["duly was not started with this application"]
        else:
            problems = [found for found in await asyncio.gather(*looks) if found is not None]
        if problems:
            response.status_code = 503
        return Health(status="unavailable" if problems else "ok", problems=problems)

    return router


async def _problem(found: Serving, room: threading.Semaphore) -> str | None:
    def ask() -> None:
        try:
            found.app.store.read_schema()
        finally:
            room.release()

    if not room.acquire(blocking=False):
        return "the store has not answered those who asked before"
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await apart(ask)  # The loop's own threads may be busy with other things.
    except TimeoutError:
        return f"the store did not answer within {_PATIENCE_SECONDS:g} s"
    except DulyError as error:
        # Its words may name hosts and files.
        return f"the store cannot be used ({type(error).__name__})"
    if found.worker is not None and not found.worker.is_live:
        return "the worker does not work: it is stopping, or its beats do not reach the store"
    return None
