"""The application whose tasks are measured; worker processes import it by this module's name."""

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
    """Return how long after its due instant the body began, by the wall clock of this machine."""
    return time.time() - due


@app.task
async def tell_delay(called_at: float) -> float:
    """Return how long after its enqueue was called the body began; both read one clock."""
    return time.monotonic() - called_at


@app.task
async def stay() -> None:
    """Occupy a slot until the worker is killed."""
    await asyncio.sleep(3600)
