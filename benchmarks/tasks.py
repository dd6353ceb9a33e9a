"""The application whose tasks are measured. Worker processes import this module by its name."""

import asyncio
import time

from benchmarks import counting
from duly import Duly

counting.count_if_asked()

app = Duly()
REFERENCE = f"{__name__}:app"


@app.task
async def noop(number: int) -> None:
    """Do nothing with one small argument."""


@app.task
async def tell_lateness(due: float) -> float:
    """Return the seconds from the due instant to the start of the body, by the wall clock."""
    return time.time() - due


@app.task
async def tell_delay(called_at: float) -> float:
    """Return the seconds from the call of `enqueue` to the start of the body, by one clock."""
    return time.monotonic() - called_at


@app.task
async def stay() -> None:
    """Occupy a slot until the worker is killed."""
    await asyncio.sleep(3600)
