"""A lifespan for Starlette and FastAPI applications that opens duly, runs tasks and drains them."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from duly import Duly
from duly.errors import BadOption, LifespanNotStarted
from duly.extend import check_worker_settings, run_in_thread

if TYPE_CHECKING:
    from duly.extend import EmbeddedWorker

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""The type of `FastAPI(lifespan=…)` and `Starlette(lifespan=…)`."""

_STATE = "duly"
"""The state key of the `ServedApp`s that requests use, also those of mounted applications."""


@dataclass(frozen=True, slots=True)
class ServedApp:
    """A `Duly` between the start and end of a web application, and its embedded worker."""

    app: Duly
    worker: "EmbeddedWorker | None"


def duly_lifespan(
    app: Duly,
    *,
    worker: bool = True,
    inner: Lifespan | None = None,
    **settings: Any,  # noqa: ANN401 - those of `app.worker`
) -> Lifespan:
    """Return a lifespan that opens the store and, with `worker`, runs tasks in this process.

    `inner` is the application's own lifespan. It is entered before the first task runs and left
    after the last has ended, so tasks find pools and clients open. Async tasks run on the
    application's event loop. At the end, the worker stops claiming, waits for running tasks during
    the grace period, and releases the rest. `settings` are those of `app.worker`: concurrency,
    queues, grace, …
    """
    if settings and not worker:
        raise BadOption(
            f"{', '.join(sorted(settings))} are settings of a worker, but worker=False starts none"
        )
    # Reject invalid settings now instead of at startup.
    check_worker_settings(app, **settings)

    app.before_calls.append(_refuse_requests)

    @asynccontextmanager
    async def lifespan(api: Any) -> AsyncIterator[Mapping[str, Any]]:  # noqa: ANN401 - Starlette's
        app.before_calls[:] = [each for each in app.before_calls if each is not _refuse_requests]
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(inner(api)) if inner is not None else None
            serving = await stack.enter_async_context(serve(app, settings if worker else None))
            yield with_served_app(state, serving)

    return lifespan


def _refuse_requests() -> None:
    """Raise if a request makes the call. No worker would run its task, without any error."""
    if is_in_a_request():
        raise LifespanNotStarted


def is_in_a_request() -> bool:
    """Return whether a Starlette endpoint runs this code, on the event loop or in a thread.

    Scripts and lifespans may enqueue tasks before anything is served.
    """
    if threading.current_thread().name.startswith("AnyIO"):
        return True
    frame = sys._getframe()  # noqa: SLF001 - the only way to find the caller
    while (caller := frame.f_back) is not None:
        frame = caller
        if frame.f_globals.get("__name__", "").startswith("starlette."):
            return frame.f_code.co_name != "lifespan"
    return False


def with_served_app(state: Mapping[str, Any] | None, serving: ServedApp) -> Mapping[str, Any]:
    """Return the state of a lifespan with one more served application."""
    others = (state or {}).get(_STATE, ())
    return {**(state or {}), _STATE: (*others, serving)}


@asynccontextmanager
async def serve(app: Duly, settings: dict[str, Any] | None) -> AsyncIterator[ServedApp]:
    """Open the store and, if `settings` is not None, run a worker on this event loop."""
    # Opening a store reads files and waits for servers. Stopping a worker waits for tasks that run
    # on this loop. Neither may block the loop, and neither may wait for one of the loop's own
    # threads, which tasks may keep busy.
    if settings is None:
        await run_in_thread(lambda: app.store)
        yield ServedApp(app, None)
        return
    loop = asyncio.get_running_loop()
    worker = await run_in_thread(
        lambda: app.worker(loop=loop, **settings).start(),
        undo=lambda started: started.stop(grace=0.0),
    )
    grace = None
    try:
        yield ServedApp(app, worker)
    except asyncio.CancelledError:
        grace = 0.0  # The server must exit at once, and closes the loop.
        raise
    finally:
        await run_in_thread(lambda: worker.stop(grace=grace))


def served_app(connection: HTTPConnection) -> tuple[ServedApp, ...]:
    """Return the applications that serve this request. Raise LifespanNotStarted without any."""
    found: tuple[ServedApp, ...] = connection.scope.get("state", {}).get(_STATE, ())
    if not found:
        raise LifespanNotStarted
    return found
