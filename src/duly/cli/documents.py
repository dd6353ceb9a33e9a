"""The JSON output: all fields of a record, with instants as ISO 8601 text in UTC."""

import json
from typing import Any

from duly.cli.arguments import ArgumentView
from duly.core.call_view import StoredCall
from duly.core.concurrency_limits import shown_lane
from duly.core.instants import iso
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
from duly.core.redaction import Redaction
from duly.limits import COUNT_CAP
from duly.store.ops.guard import DeadLetterRecord

Record = (
    StepRecord
    | RunRecord
    | AttemptRecord
    | LogLine
    | AuditEntry
    | WorkerRecord
    | QueueRecord
    | DeadLetterGroup
    | DeadLetterRecord
)


def run_document(run: RunRecord, view: ArgumentView) -> dict[str, Any]:
    """Return a run."""
    result = view.calls.result(run)
    decoded = {"tags": parsed(run.tags) or {}, "lane": shown_lane(run.lane)}
    decoded |= {"result": parsed(result), "result_hidden": result is None}
    return document(run) | decoded | call_document(run, view)


def step_document(run: RunRecord, step: StepRecord, view: ArgumentView) -> dict[str, Any]:
    """Return a step of a run. Its result stays stored text."""
    found = view.calls.step_result(run, step)
    shown = None if step.result is None else found
    return document(step) | {"result": shown, "result_hidden": found is None}


def call_document(call: StoredCall, view: ArgumentView) -> dict[str, Any]:
    """Return the arguments of a call."""
    found = view.calls.arguments(call)
    return {"arguments": parsed_call(found), "arguments_hidden": found is None}


def dead_letter_document(letter: DeadLetterRecord, *, show_args: bool) -> dict[str, Any]:
    """Return a dead letter of another engine, without its arguments unless requested."""
    arguments = parsed_call(Redaction().text(letter.arguments)) if show_args else None
    shown = {"arguments": arguments, "arguments_hidden": not show_args}
    return document(letter) | {"options": parsed(letter.options)} | shown


def worker_document(worker: WorkerRecord) -> dict[str, Any]:
    """Return a worker."""
    return document(worker) | {"queues": parsed(worker.queues), "tasks": parsed(worker.tasks)}


def queue_document(queue: QueueRecord) -> dict[str, Any]:
    """Return a queue. `counts_capped` tells whether its counts stopped at the limit."""
    counts = {"ready": queue.ready, "waiting": queue.waiting, "running": queue.running}
    capped = {name: min(count, COUNT_CAP) for name, count in counts.items()}
    return document(queue) | capped | {"counts_capped": capped != counts}


def document(record: Record) -> dict[str, Any]:
    """Return the fields of a record."""
    found = record._asdict()
    instants = [name for name in found if name == "at" or name.endswith("_at")]
    return found | {name: iso(found[name]) for name in instants}


def parsed_call(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return stored arguments as data. Those of a call are split into args and kwargs."""
    match parsed(text):
        case [list() as args, dict() as kwargs]:
            return {"args": args, "kwargs": kwargs}
        case other:
            return other


def parsed(text: str | None) -> Any:  # noqa: ANN401 - any JSON value
    """Return stored JSON as data, or the text itself if it is damaged."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
