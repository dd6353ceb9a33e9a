"""OpenTelemetry: a span for every enqueued run, and one for every attempt at it.

Use it as `Duly(tracing=OpenTelemetry())`. The context of the first span is stored in tags of the
run. The span of an attempt is linked to it and not its child, because a run may wait for days. The
messaging conventions are still experimental, so all their names are in this module.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opentelemetry import propagate, trace
from opentelemetry.trace import Link, SpanKind, Status, StatusCode, TracerProvider

from duly.core.outcome import Outcome, Raised, TimedOut
from duly.core.record import Claim
from duly.core.states import RESERVED_TAGS
from duly.limits import TAG_CHARACTERS

SYSTEM = "messaging.system"
OPERATION_TYPE = "messaging.operation.type"
OPERATION_NAME = "messaging.operation.name"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
ERROR_TYPE = "error.type"
TASK = "duly.task"
ATTEMPT = "duly.attempt"
OUTCOME = "duly.outcome"

_TRACE_HEADERS = ("traceparent", "tracestate")


class OpenTelemetry:
    """Makes spans with the given tracer provider, or with that of the process."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("duly", tracer_provider=provider)

    def enqueue_span(self, task: str, queue: str, run_id: str) -> dict[str, str]:
        """Record that a run is enqueued. Return the tags that carry the trace to its attempts."""
        attributes = _attributes("send", task, queue, run_id)
        headers: dict[str, str] = {}
        with self._tracer.start_as_current_span(
            f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes
        ):
            propagate.inject(headers)
        return {
            f"{RESERVED_TAGS}{name}": headers[name]
            for name in _TRACE_HEADERS
            if 0 < len(headers.get(name, "")) <= TAG_CHARACTERS
        }

    @contextmanager
    def attempt_span(self, claim: Claim) -> Iterator[Callable[[Outcome], None]]:
        """Put a span around a body, linked to the span that enqueued its run."""
        attributes = _attributes("process", claim.task, claim.queue, claim.run_id)
        with self._tracer.start_as_current_span(
            f"process {claim.task}",
            kind=SpanKind.CONSUMER,
            attributes={**attributes, ATTEMPT: claim.attempt},
            links=_links(claim),
        ) as span:

            def record_outcome(outcome: Outcome) -> None:
                span.set_attribute(OUTCOME, type(outcome).__name__.lower())
                if isinstance(outcome, Raised | TimedOut):
                    error = getattr(outcome, "error", None)
                    kind = getattr(error, "kind", None) or "timeout"
                    span.set_attribute(ERROR_TYPE, str(kind))
                    span.set_status(Status(StatusCode.ERROR, str(error) if error else "timed out"))

            yield record_outcome


def _attributes(operation: str, task: str, queue: str, run_id: str) -> dict[str, str]:
    return {
        SYSTEM: "duly",
        OPERATION_TYPE: operation,
        OPERATION_NAME: operation,
        DESTINATION: queue,
        MESSAGE_ID: run_id,
        TASK: task,
    }


def _links(claim: Claim) -> list[Link]:
    if not claim.tags:
        return []
    tags = json.loads(claim.tags)
    names = {name: f"{RESERVED_TAGS}{name}" for name in _TRACE_HEADERS}
    headers = {name: tags[tag] for name, tag in names.items() if tag in tags}
    found = trace.get_current_span(propagate.extract(headers)).get_span_context()
    return [Link(found)] if found.is_valid else []
