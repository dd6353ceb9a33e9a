"""The tasks of processes that are killed, and the checks of their results.

Tasks write rows without a uniqueness constraint, so that a duplicated effect is visible.
"""

from typing import Any, NamedTuple

from duly.app import Duly
from duly.clock import MICROSECONDS
from duly.context import current
from duly.run import Run
from duly.steps.functions import gather, sleep, step, wait_for
from duly.store.statements import Statements
from duly.task import Task
from duly_prove.fault_statements import fault_statements

QUEUE = "duly-prove-crashes"
CHILDREN = "duly-prove-children"
SLEEPERS = "duly-prove-sleepers"
SLEEP_SECONDS = 0.02
ORDER_TAG = "order"

app = Duly()


class CrashTask(NamedTuple):
    """A task and the expected results of one of its runs."""

    task: Task[..., Any]
    rows: tuple[str, ...]
    steps: tuple[str, ...] = ()
    children: int = 0
    awaits_event: bool = False


@app.task(queue=QUEUE, transaction=True)
def pay() -> None:
    """Write rows and enqueue a run in the run's own transaction."""
    _pay()


@app.task(queue=QUEUE)
def pay_by_step() -> None:
    """Do the same in the transaction of a step."""
    step("pay", _pay, transaction=True)
    step("count", int)


@app.task(queue=QUEUE, transaction=True)
def receipt(order: str) -> None:
    """Write the receipt that belongs to a payment."""
    note("receipt", order)


@app.task(queue=QUEUE)
def nap() -> None:
    """Sleep between two steps."""
    _note_by_step("before")
    sleep("nap", SLEEP_SECONDS)
    _note_by_step("after")


@app.task(queue=QUEUE)
def wait_for_signal() -> None:
    """Wait for an event between two steps."""
    _note_by_step("before")
    if wait_for(event_of(current().run_id)) != 1:
        message = "the first word did not count"
        raise ValueError(message)
    _note_by_step("after")


@app.task(queue=QUEUE)
def collect() -> None:
    """Wait for two children between two steps."""
    run_id = current().run_id
    _note_by_step("before")
    gather(child.using(tags={ORDER_TAG: run_id}).call() for _ in range(2))
    _note_by_step("after")


@app.task(queue=CHILDREN)
def child() -> None:
    """Do nothing, as a child."""


@app.task(queue=SLEEPERS)
def sleep_until(until: int) -> None:
    """Sleep until an instant in microseconds."""
    sleep("doze", max(0, until - app.store.now()) / MICROSECONDS)


@app.task(queue=QUEUE, transaction=True)
def create_table() -> None:
    """Create the table of the rows."""
    current().connection.execute(statements()["crash_table"])


CRASH_TASKS = {
    "pay": CrashTask(pay, ("first", "receipt", "second"), children=1),
    "pay-by-step": CrashTask(pay_by_step, ("first", "receipt", "second"), ("count", "pay"), 1),
    "nap": CrashTask(nap, ("after", "before"), ("after", "before", "nap")),
    "hear": CrashTask(
        wait_for_signal, ("after", "before"), ("after", "before", "event"), awaits_event=True
    ),
    "collect": CrashTask(collect, ("after", "before"), ("after", "before", "gather"), 2),
}


def event_of(run_id: str) -> str:
    """Return the name of the event that a run waits for."""
    return f"crash:{run_id}"


def note(name: str, run_id: str | None = None) -> None:
    """Write one row in the run's own transaction."""
    row = {"run_id": run_id or current().run_id, "name": name}
    current().connection.execute(statements()["crash_note"], row)


def statements() -> Statements:
    """Return the statements for the application's kind of database."""
    return fault_statements("sqlite" if app.store.url.startswith("sqlite:") else "postgresql")


def read_rows(run_id: str) -> list[str]:
    """Return the names of a run's rows."""
    return [str(name) for (name,) in _read("crash_rows", run_id=run_id)]


def is_sent(event: str) -> bool:
    """Return whether an event is recorded."""
    return _read("crash_event", name=event) == [(1,)]


def count_sleepers() -> dict[tuple[str, int], int]:
    """Return the number of sleeping runs by state and attempt."""
    found = _read("sleepers")
    return {(str(state), int(attempt)): int(runs) for state, attempt, runs in found}


def is_suspended(run: Run[Any]) -> bool:
    """Return whether a run waits for something and has no worker."""
    waits = any(not found.done and found.kind != "step" for found in run.steps())
    return waits and run.refresh().state == "queued"


def check_task(crash_task: CrashTask, run: Run[Any]) -> list[str]:
    """Return the differences from the expected result of a run that has ended."""
    children = app.runs.list(tag=(ORDER_TAG, run.id))
    steps = tuple(sorted(found.name.partition(":")[0] for found in run.steps() if found.done))
    expected: dict[str, tuple[object, object]] = {
        "state": (run.refresh().state, "succeeded"),
        "rows": (tuple(sorted(read_rows(run.id))), crash_task.rows),
        "steps": (steps, crash_task.steps),
        "children": ([found.state for found in children], ["succeeded"] * crash_task.children),
    }
    return [
        f"run {run.id} ({run.record.task}): {what} {found}, not {wanted}"
        for what, (found, wanted) in expected.items()
        if found != wanted
    ]


def _read(statement: str, /, **parameters: str) -> list[tuple[Any, ...]]:
    section = app.store.task_transaction()
    try:
        rows: list[tuple[Any, ...]] = section.connection.execute(
            statements()[statement], parameters
        ).fetchall()
        return rows
    finally:
        section.rollback()


def _pay() -> None:
    run_id = current().run_id
    note("first")
    receipt.using(tags={ORDER_TAG: run_id}).enqueue(run_id)
    note("second")


def _note_by_step(name: str) -> None:
    step(name, note, name, transaction=True)
