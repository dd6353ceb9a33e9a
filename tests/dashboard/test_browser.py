"""The dashboard in a real browser. Few tests, each with much to see, since a browser is slow."""

import json
from contextlib import suppress
from pathlib import Path

import axe_core_python
import pytest
from playwright.sync_api import Error as Interrupted

from tests.dashboard.test_pages import PAGES
from tests.dashboard.visiting import Visit

AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text()

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


PART = "{exclude: [['tbody tr:nth-child(n+5)']]}"
"""Rows are alike, and looking at all of them takes most of the time."""
CHECKS = {
    "light": f"axe.run({PART}, {{resultTypes: ['violations']}})",
    "dark": f"axe.run({PART}, {{resultTypes: ['violations'], runOnly: ['color-contrast']}})",
}
"""By themes, which differ in nothing but colours."""


@pytest.mark.stores("sqlite")  # The pages are the same on every database.
def test_every_screen_is_sound_in_light_and_dark_and_on_a_phone(busy, address, browser):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    group = busy.app.dead.groups()[0]
    place = f"/dead/group?task={group.task}&fingerprint={group.fingerprint}"
    of_run = (f"/runs/{run.id}", f"/runs/{run.id}/edit")
    screens = (*PAGES, *of_run, place, "/schedules/nightly-report")
    found = []
    # Scripts of the check are not ours to allow; the policy is tested in every other visit.
    with Visit(browser, address, bypass_csp=True) as visit:
        for screen in screens:
            page = visit.go(screen)
            page.evaluate(AXE)
            for theme, check in CHECKS.items():
                page.evaluate("theme => { document.documentElement.dataset.theme = theme }", theme)
                report = page.evaluate(check)
                found += [
                    f"{screen} {theme}: {each['id']}: {json.dumps(each['nodes'][0]['target'])}"
                    for each in report["violations"]
                    if each["impact"] in {"serious", "critical"}
                ]
    # 720 is what is left of 1440 at a zoom of 200 %.
    with Visit(browser, address) as visit:
        for screen in screens:
            page = visit.go(screen)
            for width in (720, 360):
                page.set_viewport_size({"width": width, "height": 800})
                across = page.evaluate("document.documentElement.scrollWidth")
                found += [f"{screen} is {across} px wide"] if across > width else []
        found += visit.wrong + visit.elsewhere

    assert found == []


def test_without_scripts_a_group_is_retried_and_a_run_cancelled(busy, address, browser):
    busy.broken = False
    with Visit(browser, address, java_script_enabled=False) as visit:
        page = visit.go("/dead")
        page.click("tbody tr:has-text('charge') a")
        page.click("text=Retry all 12")
        assert "Retry 12 dead letters?" in page.inner_text("h1")
        page.fill("#reason", "the bank is back")
        page.click("button:has-text('Retry 12')")
        for _ in range(100):
            with suppress(Interrupted):  # Its navigation may still be under way.
                page.reload(timeout=5_000)
            if "Finished." in page.inner_text("#bulk-result"):
                break
        assert "12 done" in page.inner_text("#bulk-result")
        (waiting,) = busy.app.runs.list(queue="mail", state="queued")
        page.goto(f"{address}/runs/{waiting.id}")
        assert "it is due at" in page.inner_text(".note")
        page.click("button:has-text('Cancel')")
        assert "cancelled" in page.inner_text("#run-state")
        page.click("nav >> text=Audit")
        assert "the bank is back" in page.inner_text("tbody")
