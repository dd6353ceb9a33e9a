"""Enqueues a durable run for a call of `add_task`."""

import asyncio
import json
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from duly import Duly, Run, Task
from duly.actor import resolve_actor
from duly.clock import monotonic
from duly.core.states import FINAL, State
from duly.errors import KeyConflict, LifespanNotStarted, RunNotFound, StoreUnavailable
from duly.limits import ADDING_LEASE_SECONDS
from duly.store.ops.operators import ResetKey
from duly.store.ops.runs import Enqueue
from duly.task import BoundTask, Call, accept

if TYPE_CHECKING:
    from duly.extend import EmbeddedWorker

_LOOK_SECONDS = 0.01


class ManagerNotStarted(LifespanNotStarted):
    """A task was added before its manager had started or after it had stopped."""

    def __init__(self) -> None:
        super(LifespanNotStarted, self).__init__(
            "this TaskManager has not started: pass it its application with TaskAdmin(app, "
            "task_manager) or task_manager.init_app(app), on the outermost application if that is "
            "mounted in another, or await task_manager.startup(); in tests enter the lifespan with "
            "`with TestClient(app) as client:`"
        )


class AddTaskOptions(NamedTuple):
    """The options of a call besides its arguments. None uses the task's own."""

    idempotency_key: str | None = None
    tags: dict[str, str] | None = None
    eager: bool | None = None
    priority: int | None = None
    queue: str | None = None


def wait_for_leased_id(worker: "EmbeddedWorker") -> str:
    """Return the worker id under which other processes see this process as alive.

    A worker whose lease was lost gets a new id within moments. Other machines would treat tasks
    enqueued under its old id as those of a dead process. On an event loop, this function raises
    instead of waiting, because waiting would block the loop.
    """
    until = monotonic() + ADDING_LEASE_SECONDS
    while (found := worker.leased_id) is None:
        if worker.worker_id is None:
            raise ManagerNotStarted
        if _is_loop_running():
            raise StoreUnavailable(
                "this process has lost its lease, and add_task would block the event loop until it "
                "has a new one: the task was not accepted; await aadd_task instead, or try again"
            )
        if monotonic() >= until:
            raise StoreUnavailable(
                "this process has lost its lease and could not get a new one: the task was not "
                "accepted, because other processes would consider this process dead; try again"
            )
        threading.Event().wait(_LOOK_SECONDS)
    return found


def _is_loop_running() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def accept_run(
    duly: Duly,
    bound: BoundTask[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    reserved: dict[str, str],
) -> Run[Any]:
    """Enqueue a run, or return the run with its key unless that one ended without success."""
    call: Call[Any] = bound.call(*args, **kwargs)
    op = with_reserved_tags(call.op, reserved)
    while True:
        run = _accept_call(duly, op)
        if run.new or op.key is None or not _has_ended_without_success(run):
            return run
        # If several callers do this at once, one resets the key and the others find its new run.
        duly.store.do(ResetKey(op.task, op.key.text, resolve_actor(None), run.id))


def _accept_call(duly: Duly, op: Enqueue) -> Run[Any]:
    try:
        run: Run[Any]
        (run,) = accept(duly, [Call[Any](op)])
    except KeyConflict as conflict:
        # With an idempotency key, the caller declares the task the same, whatever its arguments
        # are.
        if conflict.run_id is None:
            raise
        return Run(duly, conflict.run_id, new=False)
    return run


def find_by_key(duly: Duly, task: Task[..., Any], key: str | None) -> Run[Any] | None:
    """Return the run of a task with a key. Return None if it ended without success."""
    for run_id in duly.store.find_by_key(key) if key else ():
        run: Run[Any] = Run(duly, run_id)
        if run.refresh().record.task == task.name and not _has_ended_without_success(run):
            return run
    return None


def _has_ended_without_success(run: Run[Any]) -> bool:
    with suppress(RunNotFound):  # The run may just have been pruned.
        return run.refresh().state in FINAL - {State.SUCCEEDED}
    return False


def with_reserved_tags(op: Enqueue, reserved: dict[str, str]) -> Enqueue:
    """Return the op with tags that callers cannot set."""
    if not reserved:
        return op
    tags = json.loads(op.tags) if op.tags else {}
    return op._replace(tags=json.dumps(tags | reserved))
