"""The JSON that the router sends and accepts. The OpenAPI document is generated from it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from duly import Run
from duly.api.schedule_views import FiringView, ScheduleView
from duly.core.call_view import CallView
from duly.core.instants import moment
from duly.core.json_text import parsed
from duly.core.record import AttemptRecord, LogLine, RunRecord, StepRecord
from duly.core.states import stored_tags
from duly.limits import REASON_CHARACTERS
from duly.registry import Registry


class RunArguments(BaseModel):
    """The arguments of a call.

    Values that JSON lacks are tagged, such as `{"$date": "2030-01-31"}`.
    """

    model_config = ConfigDict(extra="forbid")
    args: list[Any] = []
    kwargs: dict[str, Any] = {}


class RunSummary(BaseModel):
    """A run in a list."""

    id: str
    task: str
    queue: str
    state: str
    cause: str | None
    priority: int
    attempt: int
    generation: int
    key: str | None
    tags: dict[str, str]
    created_at: datetime
    due_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    cancel_requested: bool
    progress: float | None
    progress_text: str | None
    error: str | None


class AttemptSummary(BaseModel):
    """An attempt that has ended."""

    attempt: int
    generation: int
    outcome: str
    worker_id: str | None
    started_at: datetime | None
    finished_at: datetime
    error: str | None
    traceback: str | None


class StepSummary(BaseModel):
    """A step of a run, or something that the run waits for."""

    name: str
    kind: str
    done: bool


class LogSummary(BaseModel):
    """A line that the task logged."""

    at: datetime
    level: str
    message: str


class RunDetail(RunSummary):
    """A run with all its details."""

    arguments: RunArguments | None = Field(description="None if the arguments are hidden")
    result: Any = Field(description="None if the result is hidden")
    traceback: str | None
    attempts: list[AttemptSummary]
    steps: list[StepSummary]
    logs: list[LogSummary]


class RunPage(BaseModel):
    """Runs, newest first."""

    runs: list[RunSummary]
    cursor: str | None = Field(description="Continues the list; None at the end")


class ActionRequest(BaseModel):
    """The reason for an operator action on a run or a schedule, stored in the audit entry."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field("", max_length=REASON_CHARACTERS)


class RetryRequest(ActionRequest):
    """How a final run is queued again."""

    arguments: RunArguments | None = Field(None, description="New arguments for the run")
    fresh_effects: bool = Field(default=False, description="With new effect keys")


class CancelResult(BaseModel):
    """The result of a cancellation."""

    answer: str = Field(description='"cancelled", "requested", or the final state it had')


class FiringSummary(BaseModel):
    """The firing of a due instant."""

    instant: datetime
    outcome: str
    reason: str | None
    run_id: str | None
    run_state: str | None
    fired_at: datetime


class ScheduleSummary(BaseModel):
    """A schedule in a list."""

    name: str
    task: str
    state: str
    reason: str | None
    when: str = Field(description="The reason as a sentence")
    cron: str | None
    tz: str
    next_at: datetime | None
    misfire: str
    overlap: str
    source: str
    is_registered: bool = Field(description="Whether a live worker knows its task")


class ScheduleDetail(ScheduleSummary):
    """A schedule with its next instants and its last firings."""

    next: list[datetime]
    firings: list[FiringSummary]


def summary_of(run: RunRecord) -> RunSummary:
    """Return a run for a list."""
    return RunSummary(**_fields(run))


def detail_of(run: Run[Any], registry: Registry, *, show_arguments: bool) -> RunDetail:
    """Return a run with all details that may be shown."""
    record = run.record
    calls = CallView(registry, hides_all=not show_arguments)
    return RunDetail(
        **_fields(record),
        arguments=_call(calls.arguments(record)),
        result=parsed(calls.result(record)),
        traceback=record.traceback,
        attempts=[_attempt(each) for each in run.attempts()],
        steps=[_step(each) for each in run.steps()],
        logs=[_log(each) for each in run.logs()],
    )


def schedule_of(schedule: ScheduleView) -> ScheduleSummary:
    """Return a schedule for a list."""
    return ScheduleSummary(**_schedule_fields(schedule))


def schedule_detail_of(
    schedule: ScheduleView, upcoming: Sequence[datetime], firings: Sequence[FiringView]
) -> ScheduleDetail:
    """Return a schedule with its past firings and its next instants."""
    past = [
        FiringSummary(**{name: getattr(firing, name) for name in FiringSummary.model_fields})
        for firing in firings
    ]
    return ScheduleDetail(**_schedule_fields(schedule), next=list(upcoming), firings=past)


def _fields(run: RunRecord) -> dict[str, Any]:
    found = {name: getattr(run, name) for name in RunSummary.model_fields}
    return found | _instants(found) | {"tags": stored_tags(run.tags)}


def _schedule_fields(schedule: ScheduleView) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in ScheduleSummary.model_fields}


def _attempt(record: AttemptRecord) -> AttemptSummary:
    found = {name: getattr(record, name) for name in AttemptSummary.model_fields}
    return AttemptSummary(**(found | _instants(found)))


def _step(record: StepRecord) -> StepSummary:
    return StepSummary(name=record.name, kind=record.kind, done=record.done)


def _log(line: LogLine) -> LogSummary:
    return LogSummary(at=moment(line.at), level=line.level, message=line.message)


def _instants(fields: dict[str, Any]) -> dict[str, datetime]:
    return {
        name: moment(value)
        for name, value in fields.items()
        if name.endswith("_at") and value is not None
    }


def _call(text: str | None) -> RunArguments | None:
    match parsed(text):
        case [list() as args, dict() as kwargs]:
            return RunArguments(args=args, kwargs=kwargs)
        case _:
            return None
