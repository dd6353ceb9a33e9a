"""The JSON form of runs and other records: the same fields in every tool that shows them.

Instants are ISO 8601 text in UTC. Arguments and results are parsed, and contain no secrets.
"""

from datetime import datetime
from typing import Any, NamedTuple, get_type_hints

from duly.api.schedule_views import FiringView, ScheduleView
from duly.core.call_view import CallView, StoredCall
from duly.core.concurrency_limits import shown_lane
from duly.core.instants import iso, microseconds_of
from duly.core.json_text import parsed
from duly.core.record import (
    AttemptRecord,
    AuditEntry,
    DeadLetterGroup,
    LogLine,
    QueueRecord,
    RunRecord,
    StepRecord,
    WorkerRecord,
)
from duly.core.states import PARENT_TAG, plain_tags, stored_tags
from duly.limits import COUNT_CAP
from duly.store.ops.guard import DeadLetterRecord

Document = dict[str, Any]


class RecordForm(NamedTuple):
    """Which fields of a kind of record have the same name and value in its JSON form."""

    kind: type[Any]
    without: frozenset[str] = frozenset()
    """Fields that the form leaves out, or that need more than the record."""
    stored_as_json: frozenset[str] = frozenset()

    def fields(self) -> dict[str, Any]:
        """Return the types of the fields by their names."""
        hints = get_type_hints(self.kind)
        return {name: hint for name, hint in hints.items() if name not in self.without}

    def document(self, record: Any) -> Document:  # noqa: ANN401 - of this kind
        """Return the JSON form of a record."""
        names = (name for name in self.kind.__annotations__ if name not in self.without)
        return {name: self._value(name, getattr(record, name)) for name in names}

    def _value(self, name: str, value: Any) -> Any:  # noqa: ANN401 - of any field
        if name in self.stored_as_json:
            return parsed(value)
        if isinstance(value, datetime):
            return json_instant(value)
        return iso(value) if is_instant(name) else value


def json_instant(instant: datetime) -> str:
    """Return the JSON form of an instant."""
    return str(iso(microseconds_of(instant)))


def is_instant(name: str) -> bool:
    """Return whether a field of this name is an instant."""
    return name == "at" or name.endswith("_at")


RUN = RecordForm(RunRecord, frozenset({"tags", "arguments", "result", "traceback"}))
ATTEMPT = RecordForm(AttemptRecord, frozenset({"run_id"}))
STEP = RecordForm(StepRecord, frozenset({"run_id", "result"}))
LOG_LINE = RecordForm(LogLine, frozenset({"run_id"}))
AUDIT_ENTRY = RecordForm(AuditEntry)
DEAD_LETTER_GROUP = RecordForm(DeadLetterGroup)
DEAD_LETTER = RecordForm(DeadLetterRecord, frozenset({"arguments"}), frozenset({"options"}))
QUEUE = RecordForm(QueueRecord)
WORKER = RecordForm(WorkerRecord, stored_as_json=frozenset({"queues", "tasks"}))
SCHEDULE = RecordForm(ScheduleView, frozenset({"arguments"}))
FIRING = RecordForm(FiringView)


def run_summary(run: RunRecord) -> Document:
    """Return a run as in a list, without its arguments, its result and its traceback."""
    tags = stored_tags(run.tags)
    return RUN.document(run) | {
        "lane": shown_lane(run.lane),
        "tags": plain_tags(tags),
        "parent": tags.get(PARENT_TAG),
    }


def run_document(run: RunRecord, calls: CallView) -> Document:
    """Return a run."""
    result = _result(calls.result(run))
    return run_summary(run) | call_document(run, calls) | result | {"traceback": run.traceback}


def step_document(run: RunRecord, step: StepRecord, calls: CallView) -> Document:
    """Return a step of a run."""
    return STEP.document(step) | _result(calls.step_result(run, step))


def schedule_document(schedule: ScheduleView, calls: CallView) -> Document:
    """Return a schedule."""
    return SCHEDULE.document(schedule) | call_document(schedule, calls)


def dead_letter_document(letter: DeadLetterRecord, calls: CallView) -> Document:
    """Return a dead letter of another engine."""
    return DEAD_LETTER.document(letter) | call_document(letter, calls)


def queue_document(queue: QueueRecord) -> Document:
    """Return a queue. `counts_capped` is true if a count stopped at its limit."""
    found = QUEUE.document(queue)
    counts = {name: found[name] for name in ("ready", "waiting", "running")}
    capped = {name: min(count, COUNT_CAP) for name, count in counts.items()}
    return found | capped | {"counts_capped": capped != counts}


def call_document(call: StoredCall, calls: CallView) -> Document:
    """Return the arguments of a call, or that they are hidden."""
    match parsed(calls.arguments(call)):
        case [list() as args, dict() as kwargs]:
            return {"arguments": {"args": args, "kwargs": kwargs}, "arguments_hidden": False}
        case _:  # Hidden, encrypted or damaged.
            return {"arguments": None, "arguments_hidden": True}


def _result(stored: str | None) -> Document:
    return {"result": parsed(stored), "result_hidden": stored is None}
