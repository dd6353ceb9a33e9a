"""Delivers events to observers, in order, on the application's event loop.

Tasks log on threads and on the loop, and ends are recorded on the engine's threads. One asyncio
task delivers all events, so observers need to be neither fast nor thread-safe.
"""

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from duly import Duly
from duly.clock import SystemClock
from duly.compat.fastapi_taskflow.context import (
    TaskContext,
    func_name,
    get_task_context,
    log_listener,
)
from duly.compat.fastapi_taskflow.loggers import LifecycleEvent, LogEvent, TaskObserver
from duly.compat.fastapi_taskflow.records import STATUSES, TaskStatus
from duly.compat.fastapi_taskflow.store_threads import StoreThreads
from duly.core.instants import moment
from duly.errors import StoreError
from duly.extend import EndedAttempt, on_attempt_end
from duly.limits import OBSERVERS_SECONDS

_CLOCK = SystemClock()
_MOST_WAITING = 10_000


class ObserverDispatcher:
    """Delivers events between the start and stop of a manager, and ignores others."""

    def __init__(self, duly: Duly, observer: TaskObserver, threads: StoreThreads) -> None:
        self._duly = duly
        self._threads = threads
        self._observer = observer
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: asyncio.Queue[LogEvent | LifecycleEvent | None] = asyncio.Queue()
        self._dispatch_task: asyncio.Task[None] | None = None
        on_attempt_end(duly, self._on_attempt_end)

    async def start(self) -> None:
        """Start to deliver events."""
        await self._observer.startup()
        self._loop = asyncio.get_running_loop()
        self._waiting = asyncio.Queue(_MOST_WAITING)
        self._dispatch_task = asyncio.create_task(self._dispatch(), name="duly-taskflow-observers")

    async def stop(self) -> None:
        """Deliver the remaining events for a limited time, then close the observers."""
        self._loop = None
        telling, self._dispatch_task = self._dispatch_task, None
        try:
            if telling is not None:
                await self._finish(telling)
        finally:
            await self._observer.close()

    async def _finish(self, telling: asyncio.Task[None]) -> None:
        # If the loop is ending, the asyncio task may have ended, and would leave the queue full.
        ending = asyncio.create_task(self._waiting.put(None))
        try:
            await asyncio.wait([telling], timeout=OBSERVERS_SECONDS)
        finally:
            ending.cancel()
            is_late = not telling.done() and telling.cancel()
            if is_late:
                # An observer must not be closed while it is still receiving an event.
                await asyncio.wait([telling], timeout=OBSERVERS_SECONDS)
        if is_late:
            logging.getLogger("duly.taskflow").warning(
                "observers have not returned within %s s: %s events were dropped",
                OBSERVERS_SECONDS,
                self._waiting.qsize(),
            )

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function wrapped so that its start and its log lines are delivered."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
                self._begin()
                return await function(*args, **kwargs)

            return awaited

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            self._begin()
            return function(*args, **kwargs)

        return called

    def _begin(self) -> None:
        log_listener.set(self._on_line)
        context = get_task_context()
        if context is not None:
            event = LifecycleEvent(
                context.task_id,
                context.func_name,
                TaskStatus.RUNNING,
                moment(_CLOCK.now()),
                context.attempt,
                context.attempt,
                tags=context.tags,
            )
            self._enqueue_event(event)

    def _on_line(
        self, context: TaskContext, message: str, level: str, extra: dict[str, Any]
    ) -> None:
        event = LogEvent(
            context.task_id,
            context.func_name,
            message,
            level,
            moment(_CLOCK.now()),
            context.attempt,
            context.tags,
            extra,
        )
        self._enqueue_event(event)

    def _on_attempt_end(self, ended: EndedAttempt) -> None:
        if ended.is_final:
            self._enqueue_event(_lifecycle_event(ended))

    def _enqueue_event(self, event: LogEvent | LifecycleEvent) -> None:
        loop = self._loop
        if loop is not None:
            # The loop was closed, as by a forced exit. No observer is left.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._put, event)

    def _put(self, event: LogEvent | LifecycleEvent) -> None:
        # Observers that cannot keep up miss lines. The run's own log has all of them.
        if not self._waiting.full():
            self._waiting.put_nowait(event)

    async def _dispatch(self) -> None:
        while (event := await self._waiting.get()) is not None:
            if isinstance(event, LogEvent):
                await self._observer.on_log(event)
                continue
            if event.status is TaskStatus.FAILED:
                event.stacktrace = await self._threads.run(self._stacktrace, event.task_id)
            await self._observer.on_lifecycle(event)

    def _stacktrace(self, task_id: str) -> str | None:
        try:
            run = self._duly.store.get_run(task_id)
        except StoreError:
            return None
        return None if run is None else run.traceback


def _lifecycle_event(ended: EndedAttempt) -> LifecycleEvent:
    return LifecycleEvent(
        ended.run_id,
        func_name(ended.task),
        STATUSES[ended.state],
        moment(_CLOCK.now()),
        ended.attempt - 1,
        ended.retries_used,
        ended.duration.total_seconds(),
        ended.error,
        tags=dict(ended.tags),
    )
