"""The JSON that the router sends and accepts. The OpenAPI document is generated from it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from duly import Run
from duly.api.json_forms import (
    ATTEMPT,
    FIRING,
    LOG_LINE,
    SCHEDULE,
    json_instant,
    run_document,
    run_summary,
    step_document,
)
from duly.api.schedule_views import FiringView, ScheduleView
from duly.core.call_view import CallView
from duly.core.record import RunRecord
from duly.limits import REASON_CHARACTERS
from duly.registry import Registry

Instant = Annotated[str, WithJsonSchema({"type": "string", "format": "date-time"})]


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
    parent: str | None = Field(description="The run that waits for this one")
    created_at: Instant
    due_at: Instant
    claimed_at: Instant | None
    finished_at: Instant | None
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
    started_at: Instant | None
    finished_at: Instant
    error: str | None
    traceback: str | None


class StepSummary(BaseModel):
    """A step of a run, or something that the run waits for."""

    name: str
    kind: str
    done: bool


class LogSummary(BaseModel):
    """A line that the task logged."""

    at: Instant
    level: str
    message: str


class RunDetail(RunSummary):
    """A run with all its details."""

    arguments: RunArguments | None
    arguments_hidden: bool
    result: Any
    result_hidden: bool
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

    instant: Instant
    outcome: str
    reason: str | None
    run_id: str | None
    run_state: str | None
    fired_at: Instant


class ScheduleSummary(BaseModel):
    """A schedule in a list."""

    name: str
    task: str
    state: str
    reason: str | None
    when: str = Field(description="The reason as a sentence")
    cron: str | None
    tz: str
    next_at: Instant | None
    misfire: str
    overlap: str
    source: str
    is_registered: bool = Field(description="Whether a live worker knows its task")


class ScheduleDetail(ScheduleSummary):
    """A schedule with its next instants and its last firings."""

    next: list[Instant]
    firings: list[FiringSummary]


def summary_of(run: RunRecord) -> RunSummary:
    """Return a run for a list."""
    return RunSummary(**run_summary(run))


def detail_of(run: Run[Any], registry: Registry, *, show_arguments: bool) -> RunDetail:
    """Return a run with all details that may be shown."""
    calls = CallView(registry, hides_all=not show_arguments)
    return RunDetail(
        **run_document(run.record, calls),
        attempts=[AttemptSummary(**ATTEMPT.document(each)) for each in run.attempts()],
        steps=[StepSummary(**step_document(run.record, each, calls)) for each in run.steps()],
        logs=[LogSummary(**LOG_LINE.document(each)) for each in run.logs()],
    )


def schedule_of(schedule: ScheduleView) -> ScheduleSummary:
    """Return a schedule for a list."""
    return ScheduleSummary(**SCHEDULE.document(schedule))


def schedule_detail_of(
    schedule: ScheduleView, upcoming: Sequence[datetime], firings: Sequence[FiringView]
) -> ScheduleDetail:
    """Return a schedule with its past firings and its next instants."""
    return ScheduleDetail(
        **SCHEDULE.document(schedule),
        next=[json_instant(instant) for instant in upcoming],
        firings=[FiringSummary(**FIRING.document(each)) for each in firings],
    )
