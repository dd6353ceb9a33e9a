"""Every screen in a real browser: accessible, on a phone, and over a slow connection."""

import gzip
import json
from collections import Counter
from pathlib import Path

import axe_core_python
import pytest

from duly.dashboard import TokenAuth, dashboard
from tests.dashboard.conftest import opened
from tests.dashboard.shop import Shop
from tests.dashboard.test_pages import PAGES
from tests.dashboard.visit import TOKEN, Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(240)]

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()
PART = "{exclude: [['tbody tr:nth-child(n+5)']]}"
"""Rows are alike, and checking all rows would take most of the time."""
CHECKS = {
    "light": f"axe.run({PART}, {{resultTypes: ['violations']}})",
    "dark": f"axe.run({PART}, {{resultTypes: ['violations'], runOnly: ['color-contrast']}})",
}
"""By theme. The themes differ only in their colours."""
WIDTHS = (720, 360)
"""A width of 1440 at a zoom of 200 %, and a phone."""
USE_THEME = "theme => { document.documentElement.dataset.theme = theme; }"
ACROSS = "() => document.documentElement.scrollWidth"
NAMELESS = """() => [...document.querySelectorAll(".badge")]
    .filter((badge) => !/[a-z]/.test(badge.textContent)).length"""


def screens(visit, shop, empty, closed):
    """Open all screens, one after the other."""
    (run,) = shop.app.runs.list(task="shop.orders:fulfil")
    group = shop.app.runs.get(run.id).record
    place = f"/dead/group?task={group.task}&fingerprint={group.fingerprint}"
    odd = ("/runs?q=colour:red state:odd", "/runs?q=key:nobody", "/runs/nothing", "/nowhere")
    schedule = "/schedules/nightly-report"
    page = visit.page
    for path in (*PAGES, f"/runs/{run.id}", f"/runs/{run.id}/edit", place, schedule, *odd):
        visit.go(path)
        yield path
    visit.go(f"/runs/{run.id}")
    visit.press("Retry")
    yield "a question about one run"
    (waiting,) = shop.app.runs.list(queue="mail", state="queued")
    visit.go(f"/runs/{waiting.id}/reschedule")
    yield "a reschedule"
    visit.press("Reschedule the run")
    yield "a reschedule that changes nothing"
    visit.go(f"/runs/{run.id}/reschedule")
    yield "a run that cannot be rescheduled"
    visit.go(f"/runs/{run.id}/edit")
    page.get_by_label("Arguments").fill("{")
    visit.press("Retry with these")
    yield "arguments that are wrong"
    visit.go(place)
    visit.press("Discard all")
    yield "a question"
    page.get_by_label("Why").fill("test data")
    visit.press("Discard 1")
    page.get_by_text("Finished.").wait_for()
    yield "an act on many runs"
    shop.app.queues.resume("reports")
    shop.app.worker().drain()
    visit.go(schedule)
    visit.section("Last firings").get_by_text("succeeded").wait_for()
    yield "a schedule whose run has succeeded"
    for path in PAGES:
        page.goto(empty + path)
        yield f"an empty {path}"
    page.goto(f"{closed}/")
    yield "signing in"
    page.get_by_label("Token").fill("wrong")
    visit.press("Sign in")
    yield "a wrong token"


def test_every_screen_is_accessible_and_fits_the_viewport(
    busy, address, serve, browser, store_kind, tmp_path
):
    nothing = Shop(f"sqlite:///{tmp_path / 'nothing.db'}")
    empty = serve(opened(nothing.app))
    closed = serve(dashboard(busy.app, auth=TokenAuth(TOKEN)))
    theme = "light" if store_kind.startswith("sqlite") else "dark"
    found = []
    # The policy would block the scripts of this check. All other visits test the policy.
    with Visit(browser, address, bypass_csp=True) as visit:
        page = visit.page
        for screen in screens(visit, busy, empty, closed):
            page.evaluate(USE_THEME, theme)
            page.evaluate(AXE)
            found += [
                f"{screen}: {each['id']}: {json.dumps(each['nodes'][0]['target'])}"
                for each in page.evaluate(CHECKS[theme])["violations"]
                if each["impact"] in {"serious", "critical"}
            ]
            for width in WIDTHS:
                page.set_viewport_size({"width": width, "height": 800})
                across = page.evaluate(ACROSS)
                found += [f"{screen} is {across} px wide, not {width}"] if across > width else []
            page.set_viewport_size({"width": 1440, "height": 900})
            found += [f"{screen}: a state without a word"] if page.evaluate(NAMELESS) else []
        found += visit.wrong
    nothing.app.close()
    assert found == []


def test_a_click_loads_no_script_or_style_again(busy, address, browser):
    with Visit(browser, address) as visit:
        sent = Counter()
        line = visit.context.new_cdp_session(visit.page)
        line.send("Network.enable")
        urls = {}
        line.on("Network.requestWillBeSent", lambda event: urls.update(named(event)))
        line.on("Network.loadingFinished", lambda event: sent.update(sized(event, urls)))

        visit.go("/")
        first = dict(sent)
        clicks = {}
        for name in ("Runs", "Queues", "Workers", "Tasks", "Schedules", "Overview"):
            sent.clear()
            visit.page.get_by_role("navigation").get_by_role("link", name=name).click()
            visit.page.wait_for_load_state("load")
            clicks[name] = dict(sent)

        assert sum(first.values()) <= 75_000
        for name, loaded in clicks.items():
            assert not [url for url in loaded if "/static/" in url], name
            assert sum(loaded.values()) <= 15_000, name
        assert visit.wrong == []


def named(event):
    return {event["requestId"]: event["request"]["url"]}


def sized(event, urls):
    """Return the transferred bytes by address. A cached file has none."""
    size = round(event["encodedDataLength"])
    return {urls[event["requestId"]]: size} if size else {}


FAST_3G = {"offline": False, "latency": 60, "downloadThroughput": 2e5, "uploadThroughput": 1e5}
"""Milliseconds, and bytes per second: 1.6 Mbit/s."""
DRAWN = """() => new Promise((told) => new PerformanceObserver((list) => {
    told(list.getEntriesByName("first-contentful-paint")[0].startTime);
}).observe({type: "paint", buffered: true}))"""
TRIES = 6
"""Repetitions of a measurement that other load can slow down. The best result counts."""


@pytest.mark.timing
def test_the_first_page_is_small_and_loads_quickly_over_a_slow_connection(busy, address, browser):
    bodies = {}
    took = []
    with Visit(browser, address) as visit:
        page = visit.page
        page.on("requestfinished", lambda request: bodies.setdefault(request.url, request))
        visit.go("/")
        assets = {url: each for url, each in bodies.items() if "/static/" in url}
        sizes = {url: len(gzip.compress(each.response().body())) for url, each in assets.items()}
        assert len(sizes) >= 5
        assert sum(sizes.values()) <= 60_000

        line = visit.context.new_cdp_session(page)
        line.send("Network.enable")
        line.send("Network.emulateNetworkConditions", FAST_3G)
        while len(took) < TRIES and (not took or min(took) > 1_000):
            page.goto(address, wait_until="commit")
            took.append(page.evaluate(DRAWN))
        assert min(took) <= 1_000
        assert visit.elsewhere == []
