"""A lifespan for Starlette and FastAPI applications: duly opens, works and drains with them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.requests import HTTPConnection

from duly.apart import apart
from duly.app import Duly
from duly.errors import BadOption, LifespanNotStarted
from duly.observe.logs import log_notice
from duly.settings import worker_settings

if TYPE_CHECKING:
    from duly.runtime.embedded import EmbeddedWorker

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]]
"""What `FastAPI(lifespan=…)` and `Starlette(lifespan=…)` take."""

_STATE = "duly"
"""Where a request finds what its application serves; mounted applications find it there, too."""

_NOT_STARTED = (
    "tasks are used in an application whose lifespan has not started: they are kept, but nothing "
    "here runs them; use `with TestClient(api)`, and something that runs lifespans around httpx's "
    "ASGITransport"
)


@dataclass(frozen=True, slots=True)
class Serving:
    """A `Duly` between the start and the end of an application, and the worker beside it."""

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

    The application's own lifespan is `inner`: it is entered before the first task runs and left
    after the last has ended, so tasks find pools and clients open. Async tasks run on the
    application's event loop. At the end the worker claims nothing more, gives what runs the grace
    and hands the rest back. `settings` are those of `app.worker`: concurrency, queues, grace, …
    """
    if settings and not worker:
        raise BadOption(
            f"{', '.join(sorted(settings))} would set up a worker, and worker=False asks for none"
        )
    worker_settings(app.settings.worker(), **settings)  # Refuses now what could not work later.

    has_started = False

    def look() -> None:
        if not has_started and _is_in_an_application():
            log_notice(_NOT_STARTED)

    app.before_opening.append(look)

    @asynccontextmanager
    async def lifespan(api: Any) -> AsyncIterator[Mapping[str, Any]]:  # noqa: ANN401 - Starlette's
        nonlocal has_started
        has_started = True
        async with AsyncExitStack() as stack:
            state = await stack.enter_async_context(inner(api)) if inner is not None else None
            serving = await stack.enter_async_context(serve(app, settings if worker else None))
            yield announced(state, serving)

    return lifespan


def _is_in_an_application() -> bool:
    """Say whether an event loop runs this, or one of the threads that endpoints have."""
    name = threading.current_thread().name
    return asyncio._get_running_loop() is not None or name.startswith("AnyIO")  # noqa: SLF001


def announced(state: Mapping[str, Any] | None, serving: Serving) -> Mapping[str, Any]:
    """Return the state of a lifespan, with what is served from now on added to it."""
    others = (state or {}).get(_STATE, ())
    return {**(state or {}), _STATE: (*others, serving)}


@asynccontextmanager
async def serve(app: Duly, settings: dict[str, Any] | None) -> AsyncIterator[Serving]:
    """Open the store and, if there are settings for one, run a worker on this event loop."""
    # Opening a store reads files and waits for servers, and a worker's end waits for bodies that
    # run on this very loop: neither may stand in its way. Nor may either wait for a thread of the
    # loop's own, which bodies may keep busy.
    if settings is None:
        await apart(lambda: app.store)
        yield Serving(app, None)
        return
    loop = asyncio.get_running_loop()
    worker = await apart(
        lambda: app.worker(loop=loop, **settings).start(),
        undo=lambda started: started.stop(grace=0.0),
    )
    grace = None
    try:
        yield Serving(app, worker)
    except asyncio.CancelledError:
        grace = 0.0  # The server is made to exit at once, and takes the loop with it.
        raise
    finally:
        await apart(lambda: worker.stop(grace=grace))


def serving(connection: HTTPConnection) -> tuple[Serving, ...]:
    """Return what serves this request, or say why nothing does."""
    found: tuple[Serving, ...] = connection.scope.get("state", {}).get(_STATE, ())
    if not found:
        raise LifespanNotStarted
    return found
