"""An application with one task for each kind of persistence, to be stopped and killed."""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, Response

from duly import Duly
from duly.compat.fastapi_taskflow import ManagedBackgroundTasks, QueueConfig, TaskAdmin, TaskManager

KINDS = {
    "requeued": {"persist": True, "requeue_on_interrupt": True},
    "persisted": {"persist": True},
    "plain": {},
}
"""The rows of the table of what happens at a shutdown, by their options."""
ADMIN = ("admin", "secret of ours")
LONG = 60.0


def wish(kind: str, which: str) -> dict[str, Any]:
    """What a call wants besides its arguments."""
    return {"tags": {"which": which}, "priority": 3, "idempotency_key": f"{kind} {which}"}


def build(
    url: str, log: Path, *, seconds: float = 0.0, at_once: int = 1
) -> tuple[FastAPI, TaskManager]:
    """Make the application; each kind of task has a queue in which one runs and others wait."""
    manager = TaskManager(
        duly=Duly(url),
        queues={
            f"{kind}-{where}": QueueConfig(concurrency=at_once)
            for kind in KINDS
            for where in ("loop", "thread")
        },
        process_shutdown_timeout=0.2,
    )
    # So that who recovers on another connection need not wait for long.
    manager._worker |= {"lease": 3.0, "beat": 1.0}

    def note(line: str) -> None:
        with log.open("a") as file:
            file.write(f"{line}\n")

    for kind, options in KINDS.items():

        def begin(which: str, kind: str = kind) -> None:
            note(f"{kind} {which}")
            time.sleep(seconds)

        async def abegin(which: str, kind: str = kind) -> None:
            note(f"{kind} {which}")
            await asyncio.sleep(seconds)

        manager.task(name=f"{kind}-thread", queue=f"{kind}-thread", **options)(begin)
        manager.task(name=f"{kind}-loop", queue=f"{kind}-loop", **options)(abegin)
        functions[f"{kind}-thread"] = begin
        functions[f"{kind}-loop"] = abegin

    app = FastAPI()
    TaskAdmin(app, manager)
    TaskAdmin(app, manager, path="/guarded", auth=ADMIN)

    @app.middleware("http")
    async def sign(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        """Tell which process has answered."""
        response = await answer(request)
        response.headers["X-Process"] = str(os.getpid())
        return response

    Tasks = Annotated[ManagedBackgroundTasks, Depends(manager.get_tasks)]  # noqa: N806

    @app.post("/add/{kind}/{which}")
    def add(kind: str, which: str, tasks: Tasks) -> str:
        return tasks.add_task(functions[kind], which, **wish(kind, which))

    @app.post("/once/{kind}/{which}")
    async def schedule(kind: str, which: str) -> None:
        now = datetime.now(UTC)
        key = f"{kind} {which}"
        await manager.schedule_once(
            functions[kind], which, run_at=now, run_key=key, **wish(kind, which)
        )

    @manager.task(name="fail")
    def fail() -> None:
        raise ValueError("it failed before the end")

    @app.post("/fail")
    def add_failure(tasks: Tasks) -> str:
        return tasks.add_task(fail)

    return app, manager


def tick() -> None:
    """Come due by two schedules, each of every second."""


def add_schedules(manager: TaskManager) -> None:
    manager.schedule(every=1, name="tick")(tick)
    manager.schedule(cron="* * * * * *", name="tick")(tick)


functions = {}

if "SERVED_LOG" in os.environ:
    app, manager = build(
        os.environ["DULY_URL"],
        Path(os.environ["SERVED_LOG"]),
        seconds=float(os.environ.get("SERVED_SECONDS", LONG)),
        at_once=int(os.environ.get("SERVED_AT_ONCE", "1")),
    )
    if "SERVED_TICKS" in os.environ:
        add_schedules(manager)
