"""The JSON output: all fields of a record, with instants as ISO 8601 text in UTC."""

from typing import Any

from duly.cli.arguments import ArgumentView, parsed, parsed_call
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
    result = view.result(run)
    decoded = {"tags": parsed(run.tags) or {}, "lane": shown_lane(run.lane)}
    decoded |= {"result": parsed(result), "result_hidden": result is None}
    return document(run) | decoded | view.document(run)


def step_document(run: RunRecord, step: StepRecord, view: ArgumentView) -> dict[str, Any]:
    """Return a step of a run. Its result stays stored text."""
    return document(step) | view.step_document(run, step)


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
