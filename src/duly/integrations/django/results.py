"""Converts a run to a Django `TaskResult`."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.conf import settings
from django.utils import timezone

from duly.core.instants import moment
from duly.core.record import AttemptRecord, RunRecord
from duly.core.states import State
from duly.integrations.django.tasks_api import Task, TaskError, TaskResult, TaskResultStatus
from duly.registry import Definition

_STATUS = {
    State.QUEUED: TaskResultStatus.READY,
    State.RUNNING: TaskResultStatus.RUNNING,
    State.SUCCEEDED: TaskResultStatus.SUCCESSFUL,
    State.FAILED: TaskResultStatus.FAILED,
    State.INTERRUPTED: TaskResultStatus.FAILED,
    State.CANCELLED: TaskResultStatus.FAILED,
}
_ERRORS = {
    State.INTERRUPTED: "duly.errors.RunInterrupted",
    State.CANCELLED: "duly.errors.RunCancelled",
}
_BELOW_TIME = 80
"""The number of bits of a UUIDv7 below its milliseconds."""
_MILLISECOND = 1_000
_RAISED = frozenset({"raised", "timed_out"})


def result_of(
    task: Task,
    definition: Definition,
    run: RunRecord,
    attempts: Sequence[AttemptRecord],
    backend: str,
) -> TaskResult:
    """Return the `TaskResult` of a run, finished or not."""
    args, kwargs = definition.codec.decode(run.arguments)
    state = State(run.state)
    ran = [attempt for attempt in attempts if attempt.outcome != "handed_back"]
    begun_at = [attempt.started_at for attempt in ran if attempt.started_at is not None]
    worker_ids = [attempt.worker_id for attempt in ran if attempt.worker_id is not None]
    if state is State.RUNNING and run.claimed_at is not None:
        begun_at.append(run.claimed_at)
        worker_ids.append(run.worker_id or "")
    result = TaskResult(
        task=task,
        id=run.id,
        status=_STATUS[state],
        enqueued_at=_enqueued_at(run.id),
        started_at=_moment(begun_at[0]) if begun_at else None,
        finished_at=None if run.finished_at is None else _moment(run.finished_at),
        last_attempted_at=_moment(begun_at[-1]) if begun_at else None,
        args=list(args),
        kwargs=kwargs,
        backend=backend,
        errors=_errors(state, run, ran),
        worker_ids=worker_ids,
    )
    if state is State.SUCCEEDED:
        object.__setattr__(result, "_return_value", definition.codec.decode_result(run.result))
    return result


def new_result(
    task: Task, run_id: str, args: Sequence[Any], kwargs: dict[str, Any], backend: str
) -> TaskResult:
    """Return the result of a call that was just enqueued."""
    return TaskResult(
        task=task,
        id=run_id,
        status=TaskResultStatus.READY,
        enqueued_at=_enqueued_at(run_id),
        started_at=None,
        finished_at=None,
        last_attempted_at=None,
        args=list(args),
        kwargs=kwargs,
        backend=backend,
        errors=[],
        worker_ids=[],
    )


def _errors(state: State, run: RunRecord, attempts: Sequence[AttemptRecord]) -> list[TaskError]:
    found = [
        TaskError(
            exception_class_path=_class_path(attempt.error or ""),
            traceback=attempt.traceback or attempt.error or "",
        )
        for attempt in attempts
        if attempt.outcome in _RAISED
    ]
    if state in _ERRORS:
        why = f"{run.state} ({run.cause})"
        found.append(TaskError(exception_class_path=_ERRORS[state], traceback=run.error or why))
    elif state is State.FAILED and not found:
        path = _class_path(run.error or "") if run.traceback else "duly.errors.RunFailed"
        trace = run.traceback or run.error or f"failed ({run.cause})"
        found.append(TaskError(exception_class_path=path, traceback=trace))
    return found


def _class_path(error: str) -> str:
    kind = error.partition(":")[0].strip()
    return kind if "." in kind else f"builtins.{kind}"


def _enqueued_at(run_id: str) -> datetime:
    """Return when the run's id was created.

    That happens in the call, so no database read is needed.
    """
    return _moment((UUID(run_id).int >> _BELOW_TIME) * _MILLISECOND)


def _moment(microseconds: int) -> datetime:
    found = moment(microseconds)
    return found if settings.USE_TZ else timezone.make_naive(found)
