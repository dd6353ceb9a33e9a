"""Spans of the call that enqueues a run and of the attempts of the run."""

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from duly import Duly, current
from duly.observe.tracing import OpenTelemetry


@pytest.fixture
def spans():
    """The exported spans."""
    return InMemorySpanExporter()


@pytest.fixture
def app(store_url, spans):
    """An application whose spans are exported to memory."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    app = Duly(store_url, tracing=OpenTelemetry(provider))
    yield app
    app.close()


def test_an_attempt_is_linked_to_the_call_that_enqueued_its_run(app, spans):
    seen = []

    @app.task(name="shop:send", queue="mail")
    def send() -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, current().tags))

    @app.task(name="shop:asend", queue="mail")
    async def asend() -> None:
        seen.append((trace.get_current_span().get_span_context().span_id, current().tags))

    for task in (send, asend):
        spans.clear()
        run = task.using(tags={"tenant": "7"}).enqueue()
        app.worker().drain()

        sent, processed = spans.get_finished_spans()
        assert (sent.name, sent.kind) == ("send mail", SpanKind.PRODUCER)
        assert (processed.name, processed.kind) == (f"process {task.name}", SpanKind.CONSUMER)
        assert processed.parent is None
        assert [link.context.span_id for link in processed.links] == [sent.context.span_id]
        assert processed.attributes["messaging.message.id"] == run.id
        assert processed.attributes["messaging.system"] == "duly"
        assert seen.pop() == (processed.context.span_id, {"tenant": "7"}), (
            "the body runs inside the span"
        )


@pytest.mark.stores("sqlite")
def test_the_span_of_a_failed_attempt_has_the_type_of_the_error(app, spans):
    @app.task(name="shop:fail")
    def fail() -> None:
        raise ConnectionError("the bank is gone")

    fail.enqueue()
    app.worker().drain()

    processed = spans.get_finished_spans()[-1]
    assert processed.status.status_code == StatusCode.ERROR
    assert processed.attributes["error.type"] == "ConnectionError"
