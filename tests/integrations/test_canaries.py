"""A secret in arguments, results, errors and limit keys: no surface shows it."""

import logging
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

from duly import Duly
from duly.cli import commands
from duly.compat.fastapi_taskflow import TaskAdmin, TaskManager
from duly.core.record import RunRecord
from duly.dashboard import dashboard, search_query
from duly.integrations.fastapi import duly_router
from duly.observe.json_logs import JsonFormatter
from duly.observe.tracing import OpenTelemetry
from tests.integrations.canaries import CANARY, HARMLESS, Canaries

pytestmark = pytest.mark.stores("sqlite-wal")
# What is shown does not depend on the store.

APP = "tests.integrations.canaries:app"
SOON = 20


class _Lines(logging.Handler):
    """Keeps every line, as text and as JSON."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        as_text = logging.Formatter("%(message)s")
        self.lines += [as_text.format(record), JsonFormatter().format(record)]


@pytest.fixture
def logged() -> Iterator[list[str]]:
    handler = _Lines()
    root = logging.getLogger()
    root.addHandler(handler)
    level, logger = root.level, logging.getLogger("duly")
    root.setLevel(logging.DEBUG)
    own, logger.level = logger.level, logging.DEBUG
    yield handler.lines
    root.removeHandler(handler)
    root.setLevel(level)
    logger.setLevel(own)


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def app(store_url: str, spans: InMemorySpanExporter) -> Iterator[Duly]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    with closing(Duly(store_url, tracing=OpenTelemetry(provider))) as found:
        yield found


@pytest.fixture
def runs(app: Duly, logged: list[str]) -> Iterator[list[Any]]:
    """Runs that have ended, one that is running, and one that waits for its limit."""
    canaries = Canaries(app)
    ended = canaries.enqueue()
    app.worker().drain(timeout=SOON)
    app.dead.retry(ended[2].id, actor="tester", reason="to see it in the audit")
    app.worker().drain(timeout=SOON)
    with app.worker():
        held = canaries.hold.enqueue(CANARY)
        assert canaries.begun.wait(SOON)
        waiting = canaries.hold.enqueue(CANARY)
        yield [*ended, held, waiting]
        waiting.cancel()
        canaries.let_go.set()
        held.result(SOON)


def the_command_line(app: Duly, runs: list[Any]) -> Iterator[str]:
    """Return what commands print, with the application and without it."""
    asked = [["runs", "list"], ["dead", "list"], ["dead", "groups"], ["dead", "export"], ["audit"]]
    asked += [["doctor"], ["queues", "list"], ["workers", "list"]]
    for run in runs:
        asked += [["runs", "show", run.id], ["why", run.id]]
        asked += [["runs", "wait", run.id]] if run.refresh().is_final else []
    for arguments in asked:
        for options in ([], ["--json"], ["--app", APP], ["--app", APP, "--json", "-v"]):
            result = CliRunner().invoke(commands, [*arguments, *options, "--url", app.url])
            assert result.exception is None or isinstance(result.exception, SystemExit), arguments
            yield f"{result.stdout}{result.stderr}"


def pages_of(client: TestClient, runs: list[Any], root: str = "") -> Iterator[str]:
    """Return what the dashboard and its JSON show."""
    names = ("runs", "dead", "schedules", "queues", "workers")
    paths = ["", *names, "tasks", "audit", "dead/export", "metrics", "api/openapi.json"]
    paths += [f"api/{name}" for name in names]
    paths += [f"{place}/{run.id}" for run in runs for place in ("runs", "api/runs")]
    paths += [f"runs/{run.id}/edit" for run in runs]
    for path in paths:
        answer = client.get(f"{root}/{path}")
        assert answer.status_code < 500, path
        yield answer.text


def the_dashboard(app: Duly, runs: list[Any]) -> Iterator[str]:
    pages = dashboard(app, show_arguments=True, write=True, auth=lambda _: "ann")
    yield from pages_of(TestClient(pages, base_url="http://localhost"), runs)


def the_router(app: Duly, runs: list[Any]) -> Iterator[str]:
    api = FastAPI()
    api.include_router(duly_router(app, auth=None, write=True, show_arguments=True))
    client = TestClient(api)
    for path in ("/runs", *(f"/runs/{run.id}" for run in runs)):
        yield client.get(path).text


def the_task_admin(app: Duly, runs: list[Any]) -> Iterator[str]:
    api = FastAPI()
    TaskAdmin(api, TaskManager(duly=app), display_func_args=True, auth=("ann", "many-long-words"))
    client = TestClient(api, base_url="http://localhost")
    client.auth = ("ann", "many-long-words")
    for path in ("", "/metrics", "/queues", "/audit", *(f"/{run.id}" for run in runs)):
        answer = client.get(f"/tasks{path}")
        assert answer.status_code == 200, path
        yield answer.text
    yield from pages_of(client, runs, "/tasks/dashboard")


@pytest.mark.parametrize("surface", [the_command_line, the_dashboard, the_router, the_task_admin])
def test_no_surface_shows_what_a_task_redacts(app, runs, surface):
    shown = list(surface(app, runs))

    assert any(HARMLESS in text for text in shown), "what is no secret is shown"
    for text in shown:
        assert CANARY not in text


def test_neither_logs_nor_spans_show_what_a_task_redacts(runs, logged, spans):
    found = [span.to_json() for span in spans.get_finished_spans()]

    for texts in (logged, found):
        assert any(HARMLESS in text for text in texts), "errors are there"
        assert not any(CANARY in text for text in texts)


def test_a_search_does_not_read_arguments_as_they_are_stored():
    search = search_query.read(f"args.card:{CANARY} error:refused", 0)
    shown_alone = SimpleNamespace(error="the card was refused")

    assert search.may_fit(cast(RunRecord, shown_alone))


def test_a_search_finds_nothing_by_what_a_task_redacts(app, runs):
    pages = dashboard(app, show_arguments=True)
    client = TestClient(pages, base_url="http://localhost")

    for query in ("args.card", "args.details.card", "args.login.password", "error"):
        found = client.get("/api/runs", params={"q": f"{query}:{CANARY}"}).json()
        assert found["runs"] == []
