"""The JSON schemas of records, for the OpenAPI document. They follow the JSON forms."""

import types
from datetime import datetime
from typing import Any, get_args, get_origin

from duly.api.json_forms import (
    ATTEMPT,
    AUDIT_ENTRY,
    LOG_LINE,
    QUEUE,
    RUN,
    SCHEDULE,
    STEP,
    RecordForm,
    is_instant,
)

Schema = dict[str, Any]
_INSTANT: Schema = {"type": "string", "format": "date-time"}
_TYPES: dict[object, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: _INSTANT,
    types.NoneType: {"type": "null"},
}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_BOOLEAN = _TYPES[bool]
_CALL: Schema = {
    "arguments": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"args": {"type": "array"}, "kwargs": {"type": "object"}},
                "required": ["args", "kwargs"],
            },
            _TYPES[types.NoneType],
        ]
    },
    "arguments_hidden": _BOOLEAN,
}
_RESULT: Schema = {"result": {}, "result_hidden": _BOOLEAN}


def schema_of(form: RecordForm, more: Schema | None = None) -> Schema:
    """Return the schema of the JSON form of a record, with the fields that a document adds."""
    fields = {
        name: _TEXTS if name in form.stored_as_json else _schema_of(name, hint)
        for name, hint in form.fields().items()
    }
    return _object(fields | (more or {}))


def run_schema() -> Schema:
    """Return the schema of a run in a list."""
    text = _TYPES[str]
    tags = {"type": "object", "additionalProperties": text}
    return schema_of(RUN, {"tags": tags, "parent": {"anyOf": [text, _TYPES[types.NoneType]]}})


def detail_schema() -> Schema:
    """Return the schema of a run with all its details."""
    run = run_schema()["properties"]
    lists = {
        "attempts": schema_of(ATTEMPT),
        "steps": schema_of(STEP, _RESULT),
        "logs": schema_of(LOG_LINE),
        "acts": schema_of(AUDIT_ENTRY),
    }
    arrays = {name: {"type": "array", "items": item} for name, item in lists.items()}
    traceback = {"anyOf": [_TYPES[str], _TYPES[types.NoneType]]}
    return _object(run | _CALL | _RESULT | {"traceback": traceback} | arrays)


def schedule_schema() -> Schema:
    """Return the schema of a schedule."""
    return schema_of(SCHEDULE, _CALL)


def queue_schema() -> Schema:
    """Return the schema of a queue."""
    return schema_of(QUEUE, {"counts_capped": _BOOLEAN})


def page_schema(name: str, item: Schema) -> Schema:
    """Return the schema of a page of a list, with the cursor of the next page."""
    return _object({name: {"type": "array", "items": item}, "next": {"type": ["string", "null"]}})


def _object(fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": list(fields)}


def _schema_of(name: str, hint: object) -> Schema:
    parts = get_args(hint) if get_origin(hint) is types.UnionType else (hint,)
    found = [_INSTANT if part is int and is_instant(name) else _TYPES[part] for part in parts]
    return found[0] if len(found) == 1 else {"anyOf": found}
