"""A small application for tests of servers. Its task waits until a test opens the gate."""

import asyncio
import os
from pathlib import Path

from fastapi import FastAPI

from duly import Duly
from duly.integrations.fastapi import DulyTasks, duly_lifespan

duly = Duly()


@duly.task(name="wait")
async def wait(number: int, folder: str) -> int:
    """Note that the run has begun, and wait. Each note is one line, written at once."""
    with (Path(folder) / "begun").open("a") as begun:
        begun.write(f"{number} {os.getpid()}\n")
    while not (Path(folder) / "gate").exists():  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(0.02)
    return number


@duly.cron("* * * * * *", seconds_field="first", name="tick")
async def tick() -> None:
    """Run every second, however many processes there are."""


GRACE = float(os.environ.get("SERVED_GRACE", "0.2"))
LEASE = float(os.environ.get("SERVED_LEASE", "15"))
AT_ONCE = int(os.environ.get("SERVED_AT_ONCE", "200"))
app = FastAPI(
    lifespan=duly_lifespan(duly, grace=GRACE, lease=LEASE, beat=LEASE / 3, async_limit=AT_ONCE)
)


@app.post("/runs/{number}")
async def add(number: int, folder: str, tasks: DulyTasks) -> str:
    return (await tasks.aadd_task(wait, number, folder)).id


@app.post("/hang")
async def hang() -> None:
    print("a request hangs", flush=True)  # noqa: T201 - into the log of the server
    await asyncio.sleep(600)


if "SERVED_OPENS" in os.environ:
    duly.runs.list()  # As in a module that reads its settings from the database.
