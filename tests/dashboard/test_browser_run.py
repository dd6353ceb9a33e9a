"""One run in a real browser: its history and its actions."""

import re
import threading
from contextlib import ExitStack

import pytest

from duly import Retry, current, sleep, step
from duly.dashboard import dashboard
from tests.dashboard.conftest import opened
from tests.dashboard.visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

BIG = 2**60 + 1
"""A JavaScript number cannot hold this integer."""
TIMED = re.compile(r"(.+): ((?:< )?[\d.]+ (?:µs|ms|s))")
"""The label and the duration of a bar."""
DRAWN = """bars => bars.map((bar) => {
    const style = getComputedStyle(bar.querySelector("rect"));
    return [bar.querySelector("title").textContent, style.fill + style.strokeDasharray];
})"""


def test_arguments_are_edited_and_checked_before_a_retry(busy, address, browser):
    run = busy.app.dead.list(task="shop.orders:charge")[0]
    busy.broken = False
    with Visit(browser, address) as visit:
        page = visit.go(f"/runs/{run.id}")
        page.get_by_role("link", name="Edit and retry").click()
        box = page.get_by_label("Arguments")
        assert "order_id" in box.input_value()
        for wrong, words in (
            ('{"kwargs": {"order": 1}}', "order"),
            ('{"kwargs": {}}', "order_id"),
            ("{", "not JSON"),
        ):
            box.fill(wrong)
            visit.press("Retry with these")
            page.get_by_role("alert").filter(has_text=words).wait_for()
            assert box.input_value() == wrong, "the typed text stays"
            assert busy.app.runs.get(run.id).state == "failed"
        box.fill(f'{{"kwargs": {{"order_id": 5, "cents": {BIG}}}}}')
        visit.press("Retry with these")
        assert page.url.endswith(f"/runs/{run.id}")
        busy.app.worker().drain()
        visit.section("Result").get_by_text(str(BIG)).wait_for()
        assert str(BIG) in visit.section("Arguments").inner_text()
        assert visit.wrong == []


def test_a_waterfall_has_a_bar_for_everything_and_an_equivalent_table(shop, serve, browser):
    @shop.app.task(name="shop.orders:ship", retries=Retry(1, base=0.02))
    def ship():
        step("weigh", lambda: 12)
        sleep("let-it-dry", 0.05)
        if current().attempt == 1:
            raise ConnectionError("the carrier does not answer")
        step("label", lambda: "L1")

    run = ship.enqueue()
    shop.app.worker().drain()
    with Visit(browser, serve(opened(shop.app))) as visit:
        page = visit.go(f"/runs/{run.id}")
        picture = page.get_by_role("img", name="The run over time")
        drawn = picture.locator("g:has(> title)").evaluate_all(DRAWN)
        titles = [title for title, _ in drawn]
        looks = {title.partition(":")[0]: look for title, look in drawn}
        page.get_by_text("As a table").click()
        rows = visit.section("Timeline").locator("tbody").get_by_role("row").all_inner_texts()

        names = [title.partition(":")[0] for title in titles]
        assert [names.count(name) for name in ("weigh", "let-it-dry", "label", "attempt 2")] == [
            1
        ] * 4
        assert names[:2] == ["in the queue", "attempt 1"]
        assert looks["let-it-dry"] not in {
            looks["weigh"],
            looks["attempt 2"],
            looks["in the queue"],
        }
        assert len(rows) == len(titles)
        for title, row in zip(titles, rows, strict=True):
            name, took = TIMED.match(title).groups()
            assert name in row, row
            assert took in row, row
        (slept,) = [float(TIMED.match(title)[2].split()[0]) for title in titles if "dry" in title]
        assert slept >= 50
        assert visit.wrong == []


def test_a_retry_from_a_step_keeps_the_earlier_steps(busy, address, browser):
    (run,) = busy.app.runs.list(task="shop.orders:fulfil")
    busy.broken = False
    assert busy.packed == 1
    with Visit(browser, address) as visit:
        page = visit.go(f"/runs/{run.id}")
        page.get_by_label("Start from step").select_option("gather")
        visit.confirm("Retry", "Retry the run")
        busy.app.worker().drain()
        visit.section("Result").get_by_text("label 12").wait_for()
        assert "shelf 7" in visit.section("Result").inner_text()
        visit.section("Operator actions").get_by_text("from step gather").wait_for()

        assert busy.packed == 1, "the earlier step was not repeated"
        assert visit.wrong == []


def test_a_waiting_run_is_rescheduled_after_a_mistake_is_corrected(busy, address, browser):
    (waiting,) = busy.app.runs.list(queue="mail", state="queued")
    with Visit(browser, address) as visit:
        page = visit.go(f"/runs/{waiting.id}")
        page.get_by_role("link", name="Reschedule").click()
        page.get_by_label("Start", exact=True).select_option("now")
        page.get_by_label("Time (UTC)").fill("2090-01-31T08:00")
        page.get_by_label("Priority").fill("5")
        page.get_by_label("Queue").fill("reports")
        page.get_by_label("Why").fill("a flood")
        visit.press("Reschedule the run")
        page.get_by_role("alert").filter(has_text="leave the time empty").wait_for()
        assert page.get_by_label("Why").input_value() == "a flood", "the typed text stays"
        assert busy.app.runs.get(waiting.id).record.queue == "mail"
        page.get_by_label("Start", exact=True).select_option("at the time below")
        visit.press("Reschedule the run")

        assert page.url.endswith(f"/runs/{waiting.id}")
        record = busy.app.runs.get(waiting.id).record
        assert (record.queue, record.priority) == ("reports", 5)
        act = visit.section("Operator actions").inner_text()
        assert "reschedule to 2090-01-31 08:00:00 UTC, priority 5, queue reports" in act
        assert "a flood" in act
        assert visit.wrong == []


def test_an_action_needs_a_confirmation_and_records_its_reason(busy, address, browser):
    dead = busy.app.dead.list(task="shop.orders:charge")[0]
    (waiting,) = busy.app.runs.list(queue="mail", state="queued")
    asks = [
        (f"/runs/{waiting.id}", "Cancel", "Cancel the run", waiting.id),
        (f"/runs/{dead.id}", "Retry", "Retry the run", dead.id),
        ("/queues", "Pause queue mail", "Pause the queue", "queue mail"),
        ("/schedules/nightly-report", "Pause", "Pause the schedule", "schedule nightly-report"),
    ]
    known = len(busy.app.store.list_audit_entries(None, 100))
    with Visit(browser, address) as visit:
        page = visit.page
        for path, button, yes, subject in asks:
            visit.go(path)
            visit.press(button)
            page.get_by_role("link", name="Go back").click()
            page.wait_for_url(f"{address}{path}")
            assert len(busy.app.store.list_audit_entries(None, 100)) == known, button

            visit.confirm(button, yes, reason=f"because of {button}")
            page.wait_for_url(f"{address}{path}")
            known += 1
            (act, *_) = busy.app.store.list_audit_entries(None, 1)
            assert (act.subject, act.reason) == (subject, f"because of {button}")
        text = visit.go("/audit").get_by_role("main").inner_text()
        assert all(f"because of {button}" in text for _, button, _, _ in asks)
        assert visit.wrong == []


def test_a_running_run_is_cancelled_and_shows_the_actor(shop, serve, browser):
    @shop.app.task(name="shop.orders:wait")
    def wait():
        shop.started.set()
        shop.released.wait(60)
        for _ in range(3_000):
            current().check_cancelled()
            threading.Event().wait(0.01)

    pages = dashboard(shop.app, write=True, auth=lambda _request: "ann")
    with Visit(browser, serve(pages)) as visit, shop.app.worker(), ExitStack() as last:
        last.callback(shop.released.set)
        run = wait.enqueue()
        assert shop.started.wait(15)
        page = visit.go(f"/runs/{run.id}")
        state = page.locator("#run-state")
        assert "running" in state.inner_text()
        visit.confirm("Cancel", "Cancel the run")
        visit.stay()
        assert "cancelling" in state.inner_text()
        page.get_by_text("Cancellation was requested by ann").wait_for()
        shop.released.set()
        state.get_by_text("cancelled").wait_for()
        assert "ann" in visit.section("Operator actions").inner_text()
        assert page.get_by_role("button", name="Cancel").count() == 0
        assert visit.has_stayed
        assert visit.wrong == []


def test_exact_numbers_are_shown_and_copied_over_plain_http(busy, serve, browser):
    run = busy.app.runs.list(task="shop.reports:nothing", state="succeeded")[-1]
    pages = dashboard(busy.app, auth=lambda _request: "ann", hosts={"shop.test"})
    address = serve(pages).replace("127.0.0.1", "shop.test")
    with Visit(browser, address) as visit:
        page = visit.go(f"/runs/{run.id}")
        assert page.evaluate("window.isSecureContext") is False
        assert str(BIG) in visit.section("Arguments").inner_text()
        copy = page.get_by_role("button", name="Copy the result")
        # The button is marked for a second only, which a busy test may miss.
        marked = copy.evaluate_handle(
            """button => ({ promise: new Promise(resolve => new MutationObserver(() => {
                if (button.classList.contains("done")) resolve();
            }).observe(button, { attributes: true })) })"""
        )
        copy.click()
        marked.evaluate("found => found.promise")

        page.get_by_role("link", name="Runs", exact=True).first.click()
        page.get_by_label("Filter", exact=True).focus()
        page.keyboard.press("Control+V")
        assert page.get_by_label("Filter", exact=True).input_value() == str(BIG)
        assert visit.wrong == visit.elsewhere == []
