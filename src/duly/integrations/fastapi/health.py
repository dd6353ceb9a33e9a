"""`/livez` and `/readyz`, for systems that restart processes and route requests to them."""

import asyncio
import threading
from typing import Literal, NamedTuple

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel

from duly.clock import MICROSECONDS
from duly.errors import DulyError
from duly.extend import run_in_thread
from duly.integrations.starlette import ServedApp, served_app

_TIMEOUT_SECONDS = 3.0
_MAX_CONCURRENT_CHECKS = 8
"""How many probes may wait for the store at once. Each holds a thread while the store hangs."""


class Health(BaseModel):
    """Whether the process is healthy, and its problems."""

    status: Literal["ok", "unavailable"]
    problems: list[str] = []


class Readiness(Health):
    """Whether the process is ready, and how late schedules are."""

    schedule_lag: float = 0.0
    """For how many seconds the longest-overdue schedule has been waiting to fire."""


def health_router() -> APIRouter:
    """Return the two probes. Their answers contain nothing confidential."""
    router = APIRouter(tags=["health"])
    room = threading.Semaphore(_MAX_CONCURRENT_CHECKS)

    @router.get("/livez")
    async def livez() -> Health:
        """Answer while the event loop runs. Without an answer, the process should be restarted."""
        return Health(status="ok")

    @router.get("/readyz", responses={503: {"model": Readiness}})
    async def readyz(request: Request, response: Response) -> Readiness:
        """Report whether the store answers and the application's worker works.

        Late schedules are reported, but do not make a process unready: another process could fire
        them.
        """
        try:
            looks = [_check_health(each, room) for each in served_app(request)]
        except DulyError:
            found = [_HealthCheck("duly was not started with this application")]
        else:
            found = await asyncio.gather(*looks)
        problems = [each.problem for each in found if each.problem is not None]
        if problems:
            response.status_code = 503
        lag = max(each.lag for each in found)
        status: Literal["ok", "unavailable"] = "unavailable" if problems else "ok"
        return Readiness(status=status, problems=problems, schedule_lag=lag)

    return router


class _HealthCheck(NamedTuple):
    problem: str | None
    lag: float = 0.0


async def _check_health(served: ServedApp, room: threading.Semaphore) -> _HealthCheck:
    def ask() -> float:
        try:
            # Read once: the application may be closed before the answer, and `app.store` would
            # reopen it.
            store = served.app.store
            store.read_schema()
            left = store.peek().next_fire_in
        finally:
            room.release()
        return 0.0 if left is None else max(0.0, -left / MICROSECONDS)

    if not room.acquire(blocking=False):
        return _HealthCheck("the store has not answered earlier health checks")
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            lag = await run_in_thread(ask)  # The loop's own threads may be busy.
    except TimeoutError:
        return _HealthCheck(f"the store did not answer within {_TIMEOUT_SECONDS:g} s")
    except DulyError as error:
        # The error's text may contain hosts and files.
        return _HealthCheck(f"the store cannot be used ({type(error).__name__})")
    if served.worker is not None and not served.worker.is_live:
        problem = (
            "the worker makes no progress: it is stopping, or its heartbeats do not reach the store"
        )
        return _HealthCheck(problem, lag)
    return _HealthCheck(None, lag)
