"""Tasks with countable effects: `duly worker duly_prove.workload:app`.

Every task records when it begins, lives and ends, and returns its fence. A result of a worker that
had lost the run is therefore recognizable.
"""

import asyncio
import sys
import time
from typing import Any

from duly.app import Duly
from duly.context import RunContext, current
from duly.core.retry import Retry
from duly_prove.observation_log import ObservationLog

QUEUE = "duly-prove"
SETUP_QUEUE = "duly-prove-setup"
SLICE_MILLISECONDS = 10

app = Duly()
observations = ObservationLog.of_this_process()
app.bus.subscribe(observations.event, successes=False)


@app.task(queue=QUEUE, transaction=True)
def order(number: int, milliseconds: int = 0, held_milliseconds: int = 0) -> int:
    """Write one row of the ledger in the run's own transaction: exactly once."""
    run = current()
    observations.body_signal("begin", run)
    work(run, milliseconds)
    connection = run.connection
    connection.execute(
        _insert(connection), (run.run_id, run.fence, run.generation, run.task, number)
    )
    work(run, held_milliseconds)
    observations.body_signal("end", run)
    return run.fence


@app.task(queue=QUEUE, on_crash="hold")
def charge(number: int, milliseconds: int = 0) -> int:
    """Write one line outside the database: at most once."""
    del number
    run = current()
    observations.body_signal("begin", run)
    observations.effect(run, durable=True)
    work(run, milliseconds)
    observations.body_signal("end", run)
    return run.fence


@app.task(queue=QUEUE, on_crash="hold")
async def subscribe(number: int, milliseconds: int = 0) -> int:
    """Write one line from the event loop: at most once."""
    del number
    run = current()
    observations.body_signal("begin", run)
    observations.effect(run)
    await work_on_loop(run, milliseconds)
    observations.body_signal("end", run)
    return run.fence


@app.task(queue=QUEUE)
async def notify(number: int, milliseconds: int = 0, milliseconds_if_taken_over: int = 0) -> int:
    """Write one line, again after a crash: at least once.

    A takeover may take longer, so that a late result of the first attempt meets a running one.
    """
    del number
    run = current()
    observations.body_signal("begin", run)
    taken_over = run.fence > 1
    await work_on_loop(run, milliseconds_if_taken_over if taken_over else milliseconds)
    observations.effect(run)
    observations.body_signal("end", run)
    return run.fence


@app.task(queue=QUEUE, executor="process")
def pack(number: int, milliseconds: int = 0) -> int:
    """Write one line from a subprocess, again after a crash: at least once."""
    del number
    run = current()
    observations.body_signal("begin", run)
    work(run, milliseconds)
    observations.effect(run)
    observations.body_signal("end", run)
    return run.fence


@app.task(queue=QUEUE)
async def fragile(number: int) -> int:
    """Fail until an operator has retried the run."""
    run = current()
    observations.effect(run)
    if run.generation == 1:
        message = f"order {number} has no address"
        raise ValueError(message)
    return run.fence


@app.task(queue=SETUP_QUEUE, transaction=True, retries=Retry(5, base=0.1))
def execute(statements: list[str]) -> None:
    """Run statements in the database, as any task with a transaction may.

    Statements that change tables may deadlock with the worker's own, and are retried.
    """
    for statement in statements:
        current().connection.execute(statement)


TRANSACTIONAL = frozenset({order.name})
HELD = frozenset({charge.name, subscribe.name})


def work(run: RunContext, milliseconds: int) -> None:
    """Take a while, and record signs of life."""
    for seconds in _slices(milliseconds):
        time.sleep(seconds)
        observations.body_signal("beat", run)


async def work_on_loop(run: RunContext, milliseconds: int) -> None:
    """Take a while on the event loop, and record signs of life."""
    for seconds in _slices(milliseconds):
        await asyncio.sleep(seconds)
        observations.body_signal("beat", run)


def _slices(milliseconds: int) -> list[float]:
    """Divide the work, so that work left when the process freezes remains afterwards."""
    whole, rest = divmod(milliseconds, SLICE_MILLISECONDS)
    return [SLICE_MILLISECONDS / 1000] * whole + [rest / 1000] * bool(rest)


def _insert(connection: Any) -> str:  # noqa: ANN401 - the driver's own connection
    """Return the ledger's INSERT with the parameter style of this connection's driver."""
    modules = (sys.modules[kind.__module__.partition(".")[0]] for kind in type(connection).__mro__)
    style = next(module.paramstyle for module in modules if hasattr(module, "paramstyle"))
    marks = ", ".join([{"qmark": "?", "pyformat": "%s"}[style]] * 5)
    return f"INSERT INTO duly_prove_ledger VALUES ({marks})"  # noqa: S608 - only marks
