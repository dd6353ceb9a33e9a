"""Converts runs to task records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from itertools import islice
from typing import Any

from duly import Duly, Filter
from duly.api.json_forms import run_summary
from duly.api.runs import every_run
from duly.clock import SystemClock
from duly.compat.fastapi_taskflow.admission import RUN_KEY_TAG
from duly.compat.fastapi_taskflow.context import func_name
from duly.compat.fastapi_taskflow.encryption import token_of
from duly.core.call_view import CallView
from duly.core.display import display
from duly.core.instants import moment
from duly.core.record import LogLine, RunRecord
from duly.core.states import RESERVED_TAGS, stored_tags
from duly.errors import PayloadError, RunNotFound
from duly.limits import PAGE

MANUAL_TAG = f"{RESERVED_TAGS}manual"
"""The tag of runs that were added directly although their task has a schedule."""

_LONGEST_LIST = 1_000
_UNKNOWN = "(unknown here: its task is not registered, so its secret arguments are unknown)"


class TaskStatus(StrEnum):
    """The status of a task. A full queue raises an error, so no task is ever REJECTED."""

    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CANCELLED = "cancelled"
    REJECTED = "rejected"


STATES = {
    TaskStatus.PENDING: "queued",
    TaskStatus.RUNNING: "running",
    TaskStatus.SUCCESS: "succeeded",
    TaskStatus.FAILED: "failed",
    TaskStatus.INTERRUPTED: "interrupted",
    TaskStatus.CANCELLED: "cancelled",
}
"""The duly state of each status."""
STATUSES = {state: status for status, state in STATES.items()}

_EXECUTORS = {"loop": "async", "thread": "thread", "process": "process"}


def now() -> datetime:
    """Return the time of this host."""
    return moment(SystemClock().now())


def iso(time: datetime | None) -> str | None:
    """Return a time as text. A time without a zone is UTC."""
    if time is None:
        return None
    return (time.replace(tzinfo=UTC) if time.tzinfo is None else time).isoformat()


@dataclass
class TaskRecord:
    """One added task and its current state."""

    task_id: str
    func_name: str
    status: TaskStatus
    args: tuple[Any, ...] = field(default=(), repr=False)
    """Arguments without a name. Empty if they are encrypted or their task is unknown here."""
    kwargs: dict[str, Any] = field(default_factory=dict, repr=False)
    """The arguments that have a name, even if they were passed by position."""
    created_at: datetime = field(default_factory=now)
    start_time: datetime | None = None
    end_time: datetime | None = None
    retries_used: int = 0
    error: str | None = None
    logs: list[str] = field(default_factory=list)
    stacktrace: str | None = None
    idempotency_key: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    encrypted_payload: bytes | None = field(default=None, repr=False)
    """The token of the stored arguments, if `encrypt_args_key` is set."""
    source: str = "manual"
    priority: int | None = None
    """None if the task has no priority, which is the same as 0."""
    executor: str | None = None
    queue: str = "default"
    cause: str | None = None
    """The reason for the final state: `not_persisted`, `crashed`, `timed_out`, …"""
    arguments: str | None = None
    """The arguments as text without secrets, if requested."""

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "TaskRecord":
        """Return the record for JSON data from `to_dict`. Missing fields have their defaults."""
        names = {each.name for each in fields(cls)}
        shown = {name: value for name, value in data.items() if name in names}
        for name in ("created_at", "start_time", "end_time"):
            if shown.get(name) is not None:
                shown[name] = datetime.fromisoformat(shown[name])
        return cls(**shown | {"status": TaskStatus(data["status"])})

    @property
    def duration(self) -> float | None:
        """Seconds from the start of the last attempt to its end."""
        if self.start_time is None or self.end_time is None:
            return None
        return (self.end_time - self.start_time).total_seconds()

    def to_dict(self) -> dict[str, Any]:
        """Return the record as JSON data."""
        shown = {
            "task_id": self.task_id,
            "func_name": self.func_name,
            "status": self.status.value,
            "created_at": iso(self.created_at),
            "start_time": iso(self.start_time),
            "end_time": iso(self.end_time),
            "duration": self.duration,
            "retries_used": self.retries_used,
            "error": self.error,
            "logs": list(self.logs),
            "stacktrace": self.stacktrace,
            "tags": dict(self.tags),
            "source": self.source,
            "priority": self.priority,
            "executor": self.executor,
            "queue": self.queue,
            "cause": self.cause,
        }
        return shown if self.arguments is None else {**shown, "arguments": self.arguments}


class TaskStore:
    """Task records by id, and the newest ones."""

    def __init__(self, duly: Duly, periodic: set[str]) -> None:
        self._duly = duly
        self._periodic = periodic
        """The names of tasks that have schedules."""

    def get(self, task_id: str, *, arguments: bool = False) -> TaskRecord | None:
        """Return a task record with its log lines, or None if it does not exist."""
        try:
            run = self._duly.runs.get(task_id)
        except RunNotFound:
            return None
        found = self.record(run.record, run.logs(), arguments=arguments)
        return self._with_arguments(found, run.record)

    def list(self, limit: int = _LONGEST_LIST) -> "list[TaskRecord]":
        """Return the newest records, without their log lines."""
        runs = every_run(self._duly.runs, Filter(), page_size=max(1, min(limit, PAGE)))
        newest = (run.record for run in islice(runs, max(0, limit)))
        return [self._with_arguments(self.record(run), run) for run in newest]

    def record(
        self, run: RunRecord, lines: Sequence[LogLine] = (), *, arguments: bool = False
    ) -> TaskRecord:
        """Return a run as a task record."""
        tags, form = stored_tags(run.tags), run_summary(run)
        is_added = run.task not in self._periodic or MANUAL_TAG in tags
        return TaskRecord(
            task_id=form["id"],
            func_name=func_name(form["task"]),
            status=STATUSES[form["state"]],
            created_at=datetime.fromisoformat(form["created_at"]),
            start_time=_time_of(form["claimed_at"]),
            end_time=_time_of(form["finished_at"]),
            retries_used=form["retries_used"],
            error=form["error"],
            logs=[f"{moment(line.at):%Y-%m-%dT%H:%M:%SZ} {line.message}" for line in lines],
            stacktrace=run.traceback,
            idempotency_key=form["key"],
            tags=form["tags"],
            source="manual" if is_added and RUN_KEY_TAG not in tags else "scheduled",
            priority=form["priority"] or None,
            executor=_EXECUTORS.get(form["lane"].removesuffix("-hold")),
            queue=form["queue"],
            cause=form["cause"],
            arguments=self._shown(run) if arguments else None,
        )

    def _with_arguments(self, found: TaskRecord, run: RunRecord) -> TaskRecord:
        token = token_of(run.arguments)
        if token is not None:
            return replace(found, encrypted_payload=token.encode())
        args, kwargs = arguments_of(self._duly, run)
        return replace(found, args=args, kwargs=kwargs)

    def _shown(self, run: RunRecord) -> str:
        shown = CallView(self._duly.registry).arguments(run)
        return _UNKNOWN if shown is None else display(shown)


def _time_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def arguments_of(duly: Duly, run: RunRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a run. They are empty if they cannot be decoded here."""
    definition = duly.registry.find(run.task)
    if definition is None:
        return (), {}
    try:
        return definition.codec.decode(run.arguments)
    except PayloadError:
        return (), {}
