"""Dead letters in a real browser: bulk actions affect each run once."""

import pytest

from tests.dashboard.conftest import opened
from tests.dashboard.visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]


def test_many_failures_of_one_bug_are_one_group_and_retried_once(shop, serve, browser):
    shop.app.enqueue_many(shop.charge.call(number) for number in range(500))
    shop.app.worker().drain()
    shop.broken = False
    with Visit(browser, serve(opened(shop.app, write=True))) as visit:
        page = visit.go("/dead")
        row = page.locator("main tbody").get_by_role("row")
        assert row.count() == 1
        assert "500" in row.inner_text()
        row.get_by_role("link").first.click()
        visit.press("Retry all 500")
        page.get_by_role("heading", name="Retry 500 dead letters?").wait_for()
        page.get_by_role("button", name="Retry 500").dblclick()

        page.get_by_text("Finished.").wait_for()
        result = page.get_by_role("main").inner_text()
        assert "500 done, 0 skipped" in result or "0 done, 500 skipped" in result
        assert page.get_by_role("progressbar").is_visible()
        visit.go("/dead").get_by_text("No dead letters.").wait_for()
        assert visit.wrong == []
    shop.app.worker().drain()
    assert shop.charged == dict.fromkeys(range(500), 1), "a second click starts no second action"


def test_all_dead_letters_that_match_a_filter_are_retried_once(busy, address, browser):
    busy.broken = False
    with Visit(browser, address) as visit:
        page = visit.go("/runs?q=task:shop.orders:charge")
        page.get_by_text("All that match").wait_for()
        visit.press("Retry …")
        page.get_by_role("heading", name="Retry 12 runs?").wait_for()
        page.get_by_role("button", name="Retry 12").dblclick()
        page.get_by_text("Finished.").wait_for()
        assert visit.wrong == []
    busy.app.worker().drain()
    assert busy.charged == dict.fromkeys(range(12), 1)
    (fulfil,) = busy.app.runs.list(task="shop.orders:fulfil")
    assert fulfil.state == "failed", "other runs are unchanged"


def test_discarding_requires_a_reason_and_records_it(busy, address, browser):
    group = busy.app.dead.list(task="shop.orders:charge")
    with Visit(browser, address) as visit:
        page = visit.go("/dead")
        row = page.get_by_role("row").filter(has_text="no label printer is online")
        row.get_by_role("link").first.click()
        visit.press("Discard all")
        page.get_by_role("button", name="Discard 1").click()
        reason = page.get_by_label("Why")
        assert reason.evaluate("box => box.validity.valueMissing"), (
            "the form is not sent without a reason"
        )
        reason.fill("a test order")
        visit.press("Discard 1")
        page.get_by_text("1 done").wait_for()

        visit.go("/dead").get_by_role("link", name="Open").first.click()
        for run in group[:2]:
            page.locator(f"#r{run.id}").get_by_role("checkbox").check()
        page.get_by_text("2 selected").wait_for()
        visit.press("Retry selected")
        page.get_by_role("heading", name="Retry 2 dead letters?").wait_for()
        visit.press("Retry 2")
        page.get_by_text("2 done").wait_for()

        acts = visit.go("/audit").get_by_role("row").filter(has_text="discard").all_inner_texts()
        assert len(acts) == 2, "one entry for the bulk action, and one for its run"
        assert all("a test order" in act and "anonymous" in act for act in acts)
        assert visit.wrong == []
    states = [busy.app.runs.get(run.id).state for run in group]
    assert states == ["queued"] * 2 + ["failed"] * 10
