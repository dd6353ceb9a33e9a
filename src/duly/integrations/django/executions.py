"""`@exactly_once`: each execution of a schedule starts at most once, whichever backend runs it.

When a schedule is due, duly creates a run in the database. If another backend runs the task, the
run is sent to it after the commit, and again as long as no worker has started it. A message
contains the run and its claim number, so a second delivery claims nothing. A task whose process was
lost does not start again: the run ends as `interrupted` and waits for an operator.
"""

import functools
import inspect
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, overload

from asgiref.sync import sync_to_async
from django.conf import settings

from duly import Duly
from duly.core.record import RunRecord
from duly.core.states import State
from duly.errors import BadOption, RunNotFound
from duly.extend import CarrierMessage, CarrierSendFailed, CarrierWorker, ResendPolicy
from duly.integrations.django.app import DjangoDuly, scheduler_app
from duly.integrations.django.inline import inline_worker
from duly.integrations.django.task_body import close_stale_connections
from duly.integrations.django.task_exceptions import RecentExceptions, exception_for
from duly.integrations.django.tasks_api import TASK_CLASSES, Task

F = TypeVar("F", bound=Callable[..., Any])

EXECUTION = "_periodic_tasks_execution_id"
"""The argument with the id of an execution, as users of django-periodic-tasks know it."""
MOST_DISPATCHES = 3
_DEFAULT_RESEND_POLICY = ResendPolicy()
_RETENTION = timedelta(hours=24)
RAISED = RecentExceptions()
"""The exceptions of executions that other backends run."""
_UNDECORATED = "_duly_exactly_once"
_OPTIONS = "_duly_once_options"


@overload
def exactly_once(function: F) -> F: ...
@overload
def exactly_once(*, transaction: bool = False) -> Callable[[F], F]: ...
def exactly_once(
    function: Callable[..., Any] | None = None, *, transaction: bool = False
) -> Callable[..., Any]:
    """Start each scheduled execution of a task at most once. Put it below `@task()`.

    With `transaction=True`, what the function writes through Django's models commits together with
    its completion. If the process is lost before that, nothing is written and the function runs
    again. A function that is called or enqueued directly, without an execution, simply runs.
    """
    if function is None:
        return partial(_once, options=_TRANSACTION if transaction else _AT_MOST_ONCE)
    return _once(function, options=_AT_MOST_ONCE)


_AT_MOST_ONCE: dict[str, Any] = {"on_crash": "hold"}
_TRANSACTION: dict[str, Any] = {"transaction": True}


def _once(function: Callable[..., Any], *, options: dict[str, Any]) -> Callable[..., Any]:
    if isinstance(function, TASK_CLASSES):
        raise BadOption("put @exactly_once below @task(), next to the function")
    if "transaction" in options and inspect.iscoroutinefunction(function):
        raise BadOption("@exactly_once(transaction=True) needs a plain def function")

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            execution = kwargs.pop(EXECUTION, None)
            if execution is None:
                return await function(*args, **kwargs)
            is_inline = scheduler_app().is_inline()
            carry = sync_to_async(_run_attempt, thread_sensitive=is_inline)
            return await carry(call, execution, args, kwargs)

    else:

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the user's own
            execution = kwargs.pop(EXECUTION, None)
            if execution is None:
                return function(*args, **kwargs)
            return _run_attempt(call, execution, args, kwargs)

    setattr(call, _UNDECORATED, function)
    setattr(call, _OPTIONS, options)
    return call


def once_options(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the engine options that `@exactly_once` sets, or nothing without it."""
    return dict(getattr(function, _OPTIONS, {}))


def undecorated(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the function below `@exactly_once`, or None without it."""
    found: Callable[..., Any] | None = getattr(function, _UNDECORATED, None)
    return found


class DjangoCarrier:
    """Sends runs to the other backends of a project."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    @property
    def resend_policy(self) -> ResendPolicy:
        """How often an execution that no worker starts is sent again."""
        sends = getattr(settings, "PERIODIC_TASKS_MAX_DISPATCH_ATTEMPTS", MOST_DISPATCHES)
        default = _DEFAULT_RESEND_POLICY.first_resend_after
        seconds = getattr(settings, "PERIODIC_TASKS_REDISPATCH_AFTER", default)
        # One dispatch would mean no retry, although that one message may have been lost.
        return ResendPolicy(seconds, None if sends is None else max(sends, 2))

    def attach(self, _app: Duly) -> None:
        """Do nothing: the settings of the project determine the application."""

    def carries(self, task: Task) -> None:
        """Remember the task of a name."""
        self._tasks[name_of(task)] = task

    def send(self, messages: Sequence[CarrierMessage]) -> None:
        """Enqueue the tasks on their own backends, each with the id of its execution."""
        failed: dict[str, Exception] = {}
        try:
            for message in messages:
                try:
                    self._enqueue(message)
                except Exception as error:  # noqa: BLE001 - must not affect other backends
                    failed[message.run_id] = error
        finally:
            close_stale_connections()
        if failed:
            raise CarrierSendFailed(failed)

    def _enqueue(self, message: CarrierMessage) -> None:
        task = self._tasks[message.task].using(queue_name=message.queue, priority=message.priority)
        task.enqueue(**{EXECUTION: f"{message.run_id}:{message.claim_number}"})


def retention() -> float | None:
    """Return for how many seconds finished executions are kept. None means the general setting."""
    kept = getattr(settings, "DULY_EXECUTION_RETENTION", _RETENTION)
    return kept.total_seconds() if isinstance(kept, timedelta) else kept


def name_of(task: Task) -> str:
    """Return the task name for the runs of a task that another backend runs.

    One task may be scheduled on several backends, and enqueued directly on duly's own.
    """
    return f"{task.module_path}@{task.backend}"


def _run_attempt(
    function: Callable[..., Any], execution: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:  # noqa: ANN401 - as above
    """Run one attempt to its end if it can still be claimed, and return its result."""
    run_id, has_claim, claim_number = execution.partition(":")
    if not has_claim:
        from duly.integrations.django.cutover import adopt  # noqa: PLC0415 - it imports this module

        # django-periodic-tasks left this message in the queue, so its run has not started here.
        adopted, claim_number = adopt(execution, args, kwargs), "0"
        if adopted is None:
            return None
        run_id = adopted
    app = scheduler_app().with_own_connections()
    record = _get_claimable(app, run_id, int(claim_number))
    if record is None:
        return None
    _register_task(app, function, record.task)
    try:
        if not _run(app, run_id, int(claim_number), record.task):
            return None
    finally:
        raised = RAISED.pop(run_id)
    run = app.runs.get(run_id)
    if run.state is State.FAILED:
        raise exception_for(run, app.registry, raised)
    return run.result() if run.state is State.SUCCEEDED else None


def _run(app: DjangoDuly, run_id: str, claim_number: int, task: str) -> bool:
    """Run one attempt to its end. Return whether there was one to run."""
    if app.is_inline():
        with inline_worker(app) as worker:
            return worker.carry(run_id, claim_number)
    carrying = CarrierWorker()
    carrying.attach(app)
    try:
        return carrying.run(run_id, claim_number, task)
    finally:
        carrying.stop()


def _get_claimable(app: Duly, run_id: str, claim_number: int) -> RunRecord | None:
    """Return a run if it can be claimed.

    Reading the run costs less than starting a worker, and most deliveries are duplicates.
    """
    try:
        record = app.runs.get(run_id).record
    except RunNotFound:
        return None
    is_waiting = record.state == State.QUEUED and record.claim_number == claim_number
    return record if is_waiting else None


def _register_task(app: Duly, function: Callable[..., Any], name: str) -> None:
    """Register the task of an execution. Perhaps no code schedules it on this backend."""
    path, _, backend = name.rpartition("@")
    if app.registry.find(name) is None and path == f"{function.__module__}.{function.__qualname__}":
        from duly.integrations.django.code_schedules import register_task  # noqa: PLC0415 - it imports this module

        task = getattr(sys.modules[function.__module__], function.__qualname__)
        register_task(task.using(backend=backend))


CARRIER = DjangoCarrier()
