"""Pages in a real browser without scripts, without data, without a database, and below a prefix."""

import re
from contextlib import suppress

import pytest
from a2wsgi import ASGIMiddleware, WSGIMiddleware
from fastapi import FastAPI
from flask import Flask
from playwright.sync_api import Error as Interrupted
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from duly.dashboard import TokenAuth, dashboard
from duly.errors import StoreUnavailable
from tests.dashboard.conftest import opened
from tests.dashboard.test_pages import PAGES
from tests.dashboard.visit import TOKEN, Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

PREFIX = "/ops/duly"
NOTHING = re.compile(r"\b(no|nobody|nothing)\b.*\.", re.IGNORECASE)
VARIABLE = re.compile(r'<time[^>]*>[^<]*</time>|value="[0-9a-f]{32,}"')
"""The parts of a page that differ between two requests."""


@pytest.fixture
def plain(busy, serve, browser):
    """Visit the dashboard without scripts, signed in."""
    auth = TokenAuth(TOKEN, name="ann")
    with Visit(
        browser, serve(dashboard(busy.app, write=True, auth=auth)), java_script_enabled=False
    ) as visit:
        visit.go("/runs")
        visit.page.get_by_label("Token").fill(TOKEN)
        visit.press("Sign in")
        yield visit


def wait_for_end(page):
    """Reload the page of a bulk action until the action is over."""
    for _ in range(200):
        with suppress(Interrupted):  # The navigation may still be in progress.
            page.reload()
        if "Finished." in page.get_by_role("main").inner_text():
            return page.get_by_role("main").inner_text()
    raise AssertionError(page.content())


def test_without_scripts_runs_are_found_retried_edited_cancelled_and_discarded(busy, plain):
    busy.broken = False
    (waiting,) = busy.app.runs.list(queue="mail", state="queued")
    (steps,) = busy.app.runs.list(task="shop.orders:fulfil")
    edited, discarded, ticked = busy.app.dead.list(task="shop.orders:charge")[:3]
    page = plain.go("/runs")
    assert len(plain.runs()) == 50
    page.get_by_role("link", name="Older").click()
    assert 0 < len(plain.runs()) < 50
    page.get_by_label("Filter", exact=True).fill("task:shop.orders:charge")
    plain.press("Filter")
    assert len(plain.runs()) == 12

    plain.go(f"/runs/{waiting.id}")
    plain.confirm("Cancel", "Cancel the run")
    assert "cancelled" in page.locator("#run-state").inner_text()
    plain.go(f"/runs/{steps.id}")
    page.get_by_label("Start from step").select_option("gather")
    plain.confirm("Retry", "Retry the run")
    plain.go(f"/runs/{edited.id}")
    page.get_by_role("link", name="Edit and retry").click()
    page.get_by_label("Arguments").fill('{"kwargs": {"order_id": 1, "cents": 7}}')
    plain.press("Retry with these")
    plain.go(f"/runs/{discarded.id}")
    plain.confirm("Discard", "Discard the run", reason="a test order")

    plain.go("/dead").get_by_role("link", name="Open").first.click()
    page.locator(f"#r{ticked.id}").get_by_role("checkbox").check()
    plain.press("Discard selected")
    page.get_by_label("Why").fill("another one")
    plain.press("Discard 1")
    assert "1 done" in wait_for_end(page)
    plain.go("/dead").get_by_role("link", name="Open").first.click()
    plain.press("Retry all 9")
    plain.press("Retry 9")
    assert "9 done" in wait_for_end(page)
    busy.app.worker().drain()
    told = plain.go("/audit").get_by_role("main").inner_text()
    for word in ("ann", "cancel", "retry", "discard", "a test order", "another one"):
        assert word in told
    assert busy.app.runs.get(edited.id).result(1) == 7
    assert busy.app.runs.get(steps.id).state == "succeeded"
    assert len(busy.app.runs.list(task="shop.orders:charge", state="succeeded")) == 10
    assert plain.wrong == []


def test_without_scripts_queue_and_schedule_actions_take_effect(busy, plain):
    page = plain.go("/queues")
    plain.confirm("Pause queue mail", "Pause the queue", reason="the relay is down")
    assert "paused" in page.get_by_role("row").filter(has_text="mail").inner_text()
    plain.confirm("Resume queue mail", "Resume the queue")
    page.get_by_label("How many runs of queue mail").fill("4")
    plain.confirm("Set the limit of queue mail", "Limit it to 4 runs", reason="a slow relay")
    assert page.get_by_label("How many runs of queue mail").input_value() == "4"
    page.get_by_label("How many runs of queue mail").fill("")
    plain.confirm("Set the limit of queue mail", "Lift the limit")
    told = [(act.act, act.reason) for act in busy.app.store.list_audit_entries("queue mail", 2)]
    assert told == [("lift limit", ""), ("limit to 4", "a slow relay")]
    plain.go("/schedules").get_by_role("link", name="half-hourly-sync").click()
    plain.confirm("Pause", "Pause the schedule")
    plain.confirm("Resume", "Resume the schedule")
    page.get_by_text("Backfill", exact=True).click()
    page.get_by_label("From (UTC)").fill("2026-01-01T00:00")
    page.get_by_label("To (UTC)").fill("2026-01-01T01:30")
    plain.confirm("Run missed instants", "Run missed instants")
    assert len(plain.runs()) >= 3
    plain.confirm("Run now", "Run it now")
    assert "/runs/" in page.url

    acts = [act.act for act in busy.app.store.list_audit_entries(None, 20)]
    assert {"pause", "resume", "pause schedule", "resume schedule", "run schedule"} <= set(acts)
    plain.press("Sign out")
    page.get_by_label("Token").wait_for()
    assert page.goto(f"{plain.address}/runs").url.endswith("/login")


def test_empty_pages_in_a_browser_explain_the_next_step(shop, serve, browser):
    with Visit(browser, serve(opened(shop.app))) as visit:
        for path in PAGES:
            main = visit.go(path).get_by_role("main")
            if path != "/tasks":  # This page lists the tasks of the application.
                assert NOTHING.search(main.inner_text()), path
            if path != "/audit":
                assert main.locator("code, pre, a").count(), path
        for path in ("/runs/nothing", "/schedules/none", "/bulk/x", "/nowhere", "/runs?q=key:x"):
            page = visit.go(path)
            words = page.get_by_role("main").inner_text()
            assert re.search(r"(There is no|No matching run|done by another)[^.]*\.", words), path
            assert page.get_by_role("navigation", name="Pages").is_visible()
        assert visit.wrong == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (StoreUnavailable("nobody listens at db:5432"), "The database does not answer"),
        (RuntimeError("a detail"), "Something went wrong"),
    ],
    ids=["database", "unknown"],
)
def test_an_error_page_explains_the_error(shop, serve, browser, monkeypatch, error, words):
    def fail():
        raise error

    monkeypatch.setattr(shop.app.store, "list_queues", fail)
    with Visit(browser, serve(opened(shop.app))) as visit:
        page = visit.go("/queues")
        assert words in page.get_by_role("main").inner_text()
        assert "a detail" not in page.content()
        assert page.get_by_role("navigation", name="Pages").is_visible()


def behind_proxy(pages):
    """Serve below a prefix that the server knows, as with a proxy."""

    async def told(scope, receive, send):
        await pages(scope | {"root_path": PREFIX}, receive, send)

    return told


def in_fastapi(pages):
    """Mount in a FastAPI application."""
    api = FastAPI()
    api.mount(PREFIX, pages)
    return api


def in_flask(pages):
    """Mount in a Flask application."""
    flask = Flask("shop")
    flask.wsgi_app = DispatcherMiddleware(flask.wsgi_app, {PREFIX: ASGIMiddleware(pages)})
    return WSGIMiddleware(flask)


@pytest.mark.parametrize("mount", [behind_proxy, in_fastapi])
def test_pages_update_and_act_below_a_prefix(busy, serve, browser, mount):
    address = serve(mount(opened(busy.app, write=True))) + PREFIX
    with Visit(browser, address) as visit:
        page = visit.go("/")
        page.keyboard.type("gq")
        page.wait_for_url(f"{address}/queues")
        queue = page.get_by_role("row").filter(has_text="mail")
        visit.confirm("Pause queue mail", "Pause the queue")
        assert page.url == f"{address}/queues"
        visit.stay()
        queue.get_by_text("paused").wait_for()
        busy.app.queues.resume("mail")
        queue.get_by_text("open").wait_for()
        assert visit.has_stayed
        assert visit.wrong == visit.elsewhere == []


def test_pages_are_the_same_wherever_they_are_mounted(busy, serve, browser):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    pages = dashboard(busy.app, write=True, auth=lambda _request: "ann")
    shown = set()
    for mount in (behind_proxy, in_fastapi, in_flask):
        # Scripts would keep a stream open in a thread of the WSGI server.
        with Visit(browser, serve(mount(pages)) + PREFIX, java_script_enabled=False) as visit:
            found = [visit.go(path).content() for path in ("/dead", f"/runs/{run.id}")]
            shown.add(VARIABLE.sub("", "".join(found)))
            visit.page.get_by_role("link", name="Queues").click()
            verb = "Pause" if mount is not in_fastapi else "Resume"
            visit.confirm(f"{verb} queue mail", f"{verb} the queue")
            assert visit.page.url == f"{visit.address}/queues"
            assert visit.wrong == visit.elsewhere == []
    assert len(shown) == 1
