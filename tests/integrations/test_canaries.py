"""A secret in arguments, results, errors and limit keys: no surface shows it."""

import itertools
import logging
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import celery
import pytest
from click.testing import CliRunner
from django.core.management import call_command
from django.test import override_settings
from fastapi import FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from starlette.testclient import TestClient

import duly
from duly import Duly
from duly.cli import commands
from duly.compat.fastapi_taskflow import TaskAdmin, TaskManager
from duly.core.record import RunRecord
from duly.dashboard import dashboard, search_query
from duly.guard import Guard
from duly.integrations.celery import IdempotentTask
from duly.integrations.django.testing import drain
from duly.integrations.fastapi import duly_router
from duly.observe.json_logs import JsonFormatter
from duly.observe.tracing import OpenTelemetry
from duly.task import Task as EngineTask
from tests.integrations.canaries import CANARY, HARMLESS, SCHEDULES, Canaries
from tests.integrations.django import tasks as django_tasks
from tests.integrations.django.api import task_backends
from tests.integrations.django.project import using
from tests.integrations.django.test_admin import UNMIGRATED, logged_in, page

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
    ended = [*canaries.enqueue(), *canaries.schedule(app)]
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
    asked += [["doctor"], ["queues", "list"], ["workers", "list"], ["schedules", "list"]]
    for name in SCHEDULES:
        asked += [["schedules", act, name] for act in ("show", "next", "firings")]
    for run in runs:
        asked += [["runs", "show", run.id], ["why", run.id]]
        asked += [["runs", "wait", run.id]] if run.refresh().is_final else []
    yield from printed(app, asked)


def the_letters_of_a_guard(app: Duly, _runs: list[Any]) -> Iterator[str]:
    """Return what commands print of a dead letter that a Celery task has left."""

    def pay(note: str, password: str, details: dict[str, Any]) -> None:
        raise ValueError(f"{note}: {password} of {details}")

    with closing(Guard(app.url)) as guard:
        shop = celery.Celery("shop", broker="memory://", backend="cache+memory://")
        options = {"base": IdempotentTask, "name": "pay", "guard": guard, "shared": False}
        shop.task(pay, **options).apply((HARMLESS, CANARY, {"api_key": CANARY}))
        (letter,) = guard.letters.list()
    asked = [["dead", act, "--engine", "celery"] for act in ("list", "groups", "export")]
    asked += [["dead", "show", letter.id]]
    asked += [[*words, "--show-args"] for words in asked if words[1] != "groups"]
    yield from printed(app, asked)


def printed(app: Duly, asked: list[list[str]]) -> Iterator[str]:
    for arguments in asked:
        for options in ([], ["--json"], ["--app", APP], ["--app", APP, "--json", "-v"]):
            result = CliRunner().invoke(commands, [*arguments, *options, "--url", app.url])
            assert result.exception is None or isinstance(result.exception, SystemExit), arguments
            yield f"{result.stdout}{result.stderr}"


def pages_of(client: TestClient, runs: list[Any], root: str = "") -> Iterator[str]:
    """Return what the dashboard and its JSON show."""
    names = ("runs", "dead", "schedules", "queues", "workers")
    asks = [("schedule", act, name) for name in SCHEDULES for act in ("run", "pause")]
    asks += [("run", act, run.id) for run in runs for act in ("retry", "cancel", "discard")]
    paths = ["", *names, "tasks", "audit", "dead/export", "metrics", "api/openapi.json"]
    paths += [f"api/{name}" for name in names]
    paths += [f"{place}/{run.id}" for run in runs for place in ("runs", "api/runs")]
    paths += [f"runs/{run.id}/edit" for run in runs]
    paths += [f"schedules/{name}" for name in SCHEDULES]
    paths += [f"ask?kind={kind}&verb={act}&name={name}" for kind, act, name in asks]
    for path in paths:
        answer = client.get(f"{root}/{path}")
        assert answer.status_code < 500, path
        yield answer.text


def the_dashboard(app: Duly, runs: list[Any]) -> Iterator[str]:
    pages = dashboard(app, show_arguments=True, write=True, auth=lambda _: "ann")
    yield from pages_of(TestClient(pages, base_url="http://localhost"), runs)


def the_live_pages(app: Duly, runs: list[Any]) -> Iterator[str]:
    """Return the first that a stream sends of each page."""
    pages = dashboard(app, show_arguments=True, write=True, auth=lambda _: "ann")
    client = TestClient(pages, base_url="http://localhost")
    paths = ["", "runs", "dead", "schedules", "queues", "workers", "tasks", "audit"]
    paths += [f"runs/{run.id}" for run in runs] + [f"schedules/{name}" for name in SCHEDULES]
    with pytest.MonkeyPatch.context() as patch:
        seconds = itertools.count()
        patch.setattr("duly.dashboard.live.monotonic", lambda: next(seconds) / 1000)
        patch.setattr("duly.dashboard.live.LIVE_SECONDS", 0)
        patch.setattr("duly.dashboard.live.LIVE_LONGEST_SECONDS", 2 / 1000)
        for path in paths:
            answer = client.get(f"/{path}", headers={"Accept": "text/event-stream"})
            assert answer.text.startswith("event: page"), path
            yield answer.text


def the_router(app: Duly, runs: list[Any]) -> Iterator[str]:
    api = FastAPI()
    api.include_router(duly_router(app, auth=None, write=True, show_arguments=True))
    client = TestClient(api)
    paths = ["/runs", "/schedules", *(f"/runs/{run.id}" for run in runs)]
    for path in (*paths, *(f"/schedules/{name}" for name in SCHEDULES)):
        answer = client.get(path)
        assert answer.status_code == 200, path
        yield answer.text


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


def the_django_admin(app: Duly, runs: list[Any]) -> Iterator[str]:
    """Return the pages about runs and schedules, of the project and of other programs."""
    with using(default=app.url):
        call_command("migrate", "duly", verbosity=0)
        with override_settings(MIGRATION_MODULES=UNMIGRATED):
            call_command("migrate", run_syncdb=True, verbosity=0)
        models = ("run", "deadletter", "execution", "schedule")
        client = logged_in(*(f"{act}_{model}" for act in ("view", "change") for model in models))
        with closing(task_backends["default"].app) as project:
            pay = project.registry.get(django_tasks.pay.module_path)
            details = {"card": CANARY, "logins": [{"password": CANARY}], "word": HARMLESS}
            for name, fails in (("paying", False), ("refused", True)):
                call = {"args": (CANARY, details), "kwargs": {"fails": fails}}
                project.schedules.add(name, EngineTask(project, pay), every=3600, **call)
            fired = [project.schedules.run_now(name) for name in ("paying", "refused")]
            drain()
            yield from (page(client, f"{model}_changelist") for model in models)
            yield from (page(client, "run_change", run.id) for run in (*runs, *fired))
            for name in (*SCHEDULES, "paying", "refused"):
                yield page(client, "schedule_change", name)
                yield page(client, "schedule_history", name)


SURFACES = (
    *(the_command_line, the_letters_of_a_guard, the_dashboard, the_live_pages),
    *(the_router, the_task_admin, the_django_admin),
)


@pytest.mark.parametrize("surface", SURFACES)
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


def test_what_a_task_writes_itself_is_shown_as_it_is(app):
    """As the page on secrets says of log lines, tags, keys, and names of steps and of events."""
    written = [f"{CANARY}-{what}" for what in ("log", "tag", "key", "step", "event")]
    log, tag, key, step, event = written

    @app.task(name="write", redact=("card",))
    def write(card: str) -> None:
        duly.current().log.info(log)
        duly.step(step, lambda: None)
        duly.wait_for(event, timeout=60)

    run = write.using(key=key, tags={"tag": tag}).enqueue(CANARY)
    app.worker().drain(timeout=SOON)
    pages = dashboard(app, show_arguments=True)
    shown = TestClient(pages, base_url="http://localhost").get(f"/runs/{run.id}").text

    assert [text for text in written if text not in shown] == []
