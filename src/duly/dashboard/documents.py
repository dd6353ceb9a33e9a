"""The JSON of the dashboard: all fields of a record, with instants as ISO 8601 text in UTC.

The OpenAPI document is generated from the same records.
"""

import types
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from duly.core.concurrency_limits import shown_lane
from duly.core.instants import iso
from duly.core.json_text import parsed
from duly.core.record import (
    AttemptRecord,
    AuditEntry,
    DeadLetterGroup,
    LogLine,
    QueueRecord,
    RunRecord,
    ScheduleRecord,
    StepRecord,
    WorkerRecord,
)
from duly.core.states import plain_tags, stored_tags

Schema = dict[str, Any]
_TYPES: dict[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    types.NoneType: {"type": "null"},
}
_OBJECT: Schema = {"type": "object"}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_ANY: Schema = {}


class RecordSchema(NamedTuple):
    """A record as JSON. Fields stored as JSON are parsed, and some fields are omitted."""

    record: type[Any]
    without: frozenset[str] = frozenset()
    read: dict[str, Schema] = {}  # noqa: RUF012 - never changed

    def document(self, record: Any) -> dict[str, Any]:  # noqa: ANN401 - of the record's type
        """Return the fields of a record."""
        fields = [pair for pair in record._asdict().items() if pair[0] not in self.without]
        return {name: self._shown(name, value) for name, value in fields}

    def _shown(self, name: str, value: Any) -> Any:  # noqa: ANN401 - of any field
        if _is_instant(name):
            return iso(value)
        return parsed(value) if name in self.read else value

    def schema(self) -> Schema:
        """Return the schema of the fields."""
        hints = get_type_hints(self.record)
        fields = {
            name: self.read[name] if name in self.read else _schema_of(name, hints[name])
            for name in self.record._fields
            if name not in self.without
        }
        return {"type": "object", "properties": fields, "required": list(fields)}


# Fields that may be hidden are added separately, after redaction.
RUN = RecordSchema(RunRecord, frozenset({"tags", "arguments", "result", "traceback"}))
ATTEMPT = RecordSchema(AttemptRecord, frozenset({"run_id"}))
STEP = RecordSchema(StepRecord, frozenset({"run_id", "result", "awaited"}))
LOG = RecordSchema(LogLine, frozenset({"run_id"}))
AUDIT_ENTRY = RecordSchema(AuditEntry)
GROUP = RecordSchema(DeadLetterGroup)
SCHEDULE = RecordSchema(ScheduleRecord, frozenset({"arguments"}), {"trigger": _ANY, "rules": _ANY})
QUEUE = RecordSchema(QueueRecord)
WORKER = RecordSchema(WorkerRecord, read={"queues": _TEXTS, "tasks": _TEXTS})


def run_document(run: RunRecord) -> dict[str, Any]:
    """Return a run for a list."""
    tags = plain_tags(stored_tags(run.tags))
    return RUN.document(run) | {"tags": tags, "lane": shown_lane(run.lane)}


def schedule_document(schedule: ScheduleRecord) -> dict[str, Any]:
    """Return a schedule for a list."""
    return SCHEDULE.document(schedule) | {"lane": shown_lane(schedule.lane)}


def run_schema() -> Schema:
    """Return the schema of a run in a list."""
    found = RUN.schema()
    found["properties"]["tags"] = _OBJECT
    return found


def detail_schema() -> Schema:
    """Return the schema of a run with all its details."""
    found = run_schema()
    lists = {"attempts": ATTEMPT, "steps": STEP, "logs": LOG, "acts": AUDIT_ENTRY}
    found["properties"] |= {
        "arguments": {"description": "null if the arguments are hidden"},
        "result": {"description": "null if the result is hidden"},
        **{name: {"type": "array", "items": kind.schema()} for name, kind in lists.items()},
    }
    return found


def page_schema(name: str, item: Schema) -> Schema:
    """Return the schema of a page of a list, with the cursor of the next page."""
    fields = {name: {"type": "array", "items": item}, "next": {"type": ["string", "null"]}}
    return {"type": "object", "properties": fields, "required": [name, "next"]}


def _is_instant(name: str) -> bool:
    return name == "at" or name.endswith("_at")


def _schema_of(name: str, hint: object) -> Schema:
    parts = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    instant: Schema = {"type": "string", "format": "date-time"}
    found = [instant if part is int and _is_instant(name) else _TYPES[part] for part in parts]
    return found[0] if len(found) == 1 else {"anyOf": found}
