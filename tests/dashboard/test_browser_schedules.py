"""Schedules in a real browser: firings across clock changes, and actions."""

from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from duly.core.instants import moment
from tests.dashboard.conftest import opened
from tests.dashboard.visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

ZONES = ("America/New_York", "Europe/London", "Australia/Lord_Howe")


def next_change(zone, now):
    """Return the next day on which the clocks of a zone change."""
    day = now.astimezone(zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    while True:
        day = (day.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
        after = (day.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=zone)
        if day.utcoffset() != after.utcoffset():
            return day


def test_next_fires_match_the_engine_when_clocks_change(shop, serve, browser):
    for name in ZONES:
        day = next_change(ZoneInfo(name), moment(shop.app.store.now()))
        cron = f"*/30 0-4 {day.day} {day.month} *"
        shop.app.schedules.add(name, shop.nothing, cron=cron, tz=name)
    with Visit(browser, serve(opened(shop.app))) as visit:
        for name in ZONES:
            visit.go(f"/schedules/{name}")
            fires = visit.section("Next fires").get_by_role("listitem")
            written = fires.locator("time").evaluate_all(
                "times => times.map(time => time.dateTime)"
            )

            expected = shop.app.schedules.next(name, 5)
            assert written == [fire.isoformat() for fire in expected]
            assert len({fire.utcoffset() for fire in expected}) == 2, (
                "the clocks change between the two firings"
            )
            for words, fire in zip(fires.all_inner_texts(), expected, strict=True):
                assert f"{fire:%H:%M:%S %z}" in words
        assert visit.wrong == []


def test_a_schedule_that_is_overdue_and_unknown_to_workers_is_marked(shop, serve, browser):
    shop.app.schedules.add("overdue", shop.nothing, every=900)
    shop.app.schedules.add("tomorrow", shop.nothing, every=86_400)
    shop.app.worker().drain()  # A worker that knew the tasks has ended.
    with Visit(browser, serve(opened(shop.app))) as visit:
        page = visit.go("/schedules")
        page.clock.install(time=shop.app.schedules.get("overdue").next_at + timedelta(seconds=90))
        visit.go("/schedules")
        late, early = (
            page.get_by_role("row").filter(has_text=name) for name in ("overdue", "tomorrow")
        )

        assert late.locator("time").inner_text() == "due since 1 min"
        assert early.locator("time").inner_text() == "in 23 h"
        assert "No live worker knows its task." in late.inner_text()
        assert "s-warn" in late.locator(".badge").get_attribute("class")
        assert late.locator(".badge").inner_text().split() == ["!", "active"]
        visit.go("/schedules/overdue")
        assert "No live worker knows its task." in page.inner_text("main")
        assert visit.wrong == []


@pytest.mark.parametrize(("width", "rows"), [(1440, [9]), (1280, [5, 4]), (1000, [5, 4])])
def test_the_figures_of_the_overview_fill_their_rows(shop, serve, browser, width, rows):
    shop.app.worker().drain()
    with Visit(browser, serve(opened(shop.app))) as visit:
        visit.page.set_viewport_size({"width": width, "height": 900})
        page = visit.go("/")
        boxes = page.locator(".stats div").evaluate_all(
            "tiles => tiles.map(tile => tile.getBoundingClientRect()).map(at => [at.top, at.right])"
        )

        tops = sorted({top for top, _ in boxes})
        assert [sum(top == each for top, _ in boxes) for each in tops] == rows
        assert len({round(max(r for top, r in boxes if top == each)) for each in tops}) == 1
        assert visit.wrong == []


def test_a_schedule_whose_runs_fail_shows_the_failures(shop, serve, browser):
    shop.app.schedules.add("failing", shop.charge, every=900, args=(1,))
    shop.app.schedules.add("working", shop.nothing, every=900)
    for _ in range(2):
        for name in ("failing", "working"):
            shop.app.schedules.run_now(name, actor="ann")
        shop.app.worker().drain()
    waiting = shop.app.schedules.run_now("working", actor="ann")
    with Visit(browser, serve(opened(shop.app))) as visit:
        page = visit.go("/schedules")
        visit.stay()
        dots = {
            name: page.get_by_role("row").filter(has_text=name).locator(".dot")
            for name in ("failing", "working")
        }
        assert dots["failing"].all_inner_texts() == ["✕", "✕"]
        assert dots["working"].all_inner_texts() == ["✓", "✓", "○"]
        assert "failed" in dots["failing"].first.get_attribute("title")
        good, bad = (
            dots[name].first.evaluate("dot => getComputedStyle(dot).color")
            for name in ("working", "failing")
        )
        assert good != bad
        shop.app.worker().drain()
        dots["working"].last.get_by_text("✓").wait_for()
        assert visit.has_stayed

        visit.go("/schedules/failing")
        rows = visit.section("Last firings").get_by_role("row")
        assert [("failed" in text) for text in rows.all_inner_texts()[1:]] == [True, True]
        visit.go("/schedules/working")
        shown = visit.section("Last firings").inner_text()
        assert shown.count("succeeded") == 3
        assert waiting.id in visit.runs()
        assert visit.wrong == []


def test_a_schedule_action_takes_effect_and_is_shown_on_every_page(busy, address, browser):
    with Visit(browser, address) as visit, Visit(browser, address) as other:
        listed = other.go("/schedules").get_by_role("row").filter(has_text="half-hourly-sync")
        other.stay()
        page = visit.go("/schedules/half-hourly-sync")
        visit.confirm("Pause", "Pause the schedule")
        listed.get_by_text("paused").wait_for()
        assert busy.app.schedules.get("half-hourly-sync").state == "paused"
        visit.confirm("Resume", "Resume the schedule")
        listed.get_by_text("active").wait_for()
        assert page.get_by_role("button", name="Pause").is_visible()

        visit.confirm("Run now", "Run it now", reason="the bank asked for it")
        run = visit.page.url.rpartition("/")[2]
        assert busy.app.runs.get(run).state == "queued"
        visit.go("/schedules/half-hourly-sync")
        assert run in visit.runs()
        visit.page.get_by_text("Backfill", exact=True).click()
        visit.page.get_by_label("From (UTC)").fill("2026-01-01T00:00")
        visit.page.get_by_label("To (UTC)").fill("2026-01-01T01:30")
        before = len(busy.app.runs.list(limit=200))
        visit.press("Run missed instants")
        assert "from 2026-01-01 00:00 UTC to before" in visit.page.get_by_role("main").inner_text()
        assert len(busy.app.runs.list(limit=200)) == before, (
            "nothing happens before the confirmation"
        )
        visit.page.get_by_label("Why").fill("the night was lost")
        visit.press("Run missed instants")
        assert len(busy.app.runs.list(limit=200)) == before + 3
        done = visit.section("Operator actions").inner_text()
        for act in ("pause", "resume", "run", "backfill"):
            assert f"{act} schedule" in done
        assert "the bank asked for it" in done
        assert "the night was lost" in done
        assert other.has_stayed
        assert visit.wrong == other.wrong == []
