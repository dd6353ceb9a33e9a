"""Runs that need a person, in a real browser: the overview reports them as a problem."""

import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from duly import Duly, current
from duly.limits import TICK_BATCH
from duly.store.ops.upkeep import Tick
from tests.dashboard.conftest import client_of, opened
from tests.dashboard.doomed import LEASE
from tests.dashboard.visit import Visit
from tests.servers.processes import wait_until
from tests.store.conformance.stores import opened_tables

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]


def age_history(store_url, days):
    """Backdate all finished runs. The charts of the last day do not show them."""
    passed = days * 86_400
    back = f"{passed}000000" if store_url.startswith("sqlite") else f"interval '{passed} s'"
    with opened_tables(store_url) as tables:
        tables.execute(f"UPDATE duly_history SET finished_at = finished_at - {back}")  # noqa: S608
        tables.execute("DELETE FROM duly_tallies")


def health_of(visit):
    return visit.page.get_by_role("region", name="Health")


def test_old_dead_letters_are_reported_and_counted_on_every_page(shop, store_url, serve, browser):
    shop.app.enqueue_many(shop.charge.call(number) for number in range(20))
    shop.app.worker().drain()
    age_history(store_url, days=20)
    with shop.app.worker(), Visit(browser, serve(opened(shop.app, write=True))) as visit:
        page = visit.go("/")
        visit.stay()
        assert "All is well" not in health_of(visit).inner_text()
        health_of(visit).get_by_role("link", name="20 dead letters wait").wait_for()
        stat = page.locator(".stats div").filter(has_text="Dead letters")
        assert "20" in stat.inner_text()
        count = page.get_by_role("navigation").get_by_role("link", name="Dead letters 20")
        count.wait_for()

        shop.app.dead.discard(
            [run.id for run in shop.app.dead.list(limit=19)], actor="ann", reason="test data"
        )
        page.get_by_role("navigation").get_by_role("link", name="Dead letters 1").wait_for()
        health_of(visit).get_by_role("link", name="1 dead letter waits").wait_for()
        assert visit.has_stayed, "the navigation follows without a reload"
        for path in ("/runs", "/dead", "/schedules", "/queues", "/workers", "/tasks", "/audit"):
            visit.go(path)
            link = page.get_by_role("navigation").get_by_role("link", name="Dead letters")
            assert link.inner_text().split() == ["Dead", "letters", "1"]

        shop.app.dead.discard(shop.app.dead.list()[0].id, actor="ann", reason="test data")
        page = visit.go("/")
        health_of(visit).get_by_text("All is well.").wait_for()
        link = page.get_by_role("navigation").get_by_role("link", name="Dead letters")
        assert link.inner_text().split() == ["Dead", "letters"]
        assert visit.wrong == []


def test_an_interrupted_run_needs_a_person(shop, serve, browser):
    @shop.app.task(name="shop.orders:pay", on_crash="hold", timeout=0.05)
    def pay():
        while True:
            current().check_cancelled()

    pay.enqueue()
    with shop.app.worker(), Visit(browser, serve(opened(shop.app))) as visit:
        wait_until(
            lambda: shop.app.dead.list(state="interrupted"), seconds=20, what="it is interrupted"
        )
        page = visit.go("/")
        health_of(visit).get_by_text("Action needed.").wait_for()
        health_of(visit).get_by_role("link", name="1 run was interrupted").click()
        page.get_by_text("pay", exact=True).wait_for()
        assert len(visit.runs()) == 1
        assert visit.wrong == []


def test_a_task_that_no_worker_knows_is_named_by_every_monitor(shop, serve, browser, store_url):
    other = Duly(store_url)
    other.task(name="shop.old:gone")(lambda: None).enqueue()
    with shop.app.worker(), Visit(browser, serve(opened(shop.app))) as visit:
        shop.app.store.do(Tick(TICK_BATCH))
        page = visit.go("/")
        health_of(visit).get_by_text("Action needed.").wait_for()
        reason = health_of(visit).get_by_role("link", name="1 run of shop.old:gone waits in queue")
        reason.click()
        page.get_by_text("gone", exact=True).wait_for()
        assert len(visit.runs()) == 1
        page = visit.go("/tasks")
        page.get_by_role("row").filter(has_text="gone").wait_for()
        assert visit.wrong == []
        sample = metric(shop, "duly_unserved_runs")
    other.close()

    assert sample == {("default", "shop.old:gone"): 1}


@pytest.mark.process
def test_no_surface_counts_a_worker_that_was_killed(shop, store_url, serve, browser):
    command = [sys.executable, "-m", "tests.dashboard.doomed", store_url]
    with (
        subprocess.Popen(command, cwd=ROOT) as worker,
        Visit(browser, serve(opened(shop.app))) as visit,
    ):
        try:
            wait_until(
                lambda: metric(shop, "duly_workers") == {("all",): 1},
                seconds=40,
                what="the worker is there",
            )
            page = visit.go("/")
            visit.stay()
            workers = page.locator(".stats div").filter(has_text="Workers")
            workers.get_by_text("1", exact=True).wait_for()
        finally:
            worker.kill()
        workers.get_by_text("0", exact=True).wait_for(timeout=1_000 * (LEASE + 20))
        health_of(visit).get_by_text("no worker is live").wait_for()
        assert visit.has_stayed
        page = visit.go("/workers")
        card = page.get_by_role("region").filter(has_text=f"pid {worker.pid}")
        card.get_by_text("silent").wait_for()
        assert metric(shop, "duly_workers") == {("all",): 0}, (
            "the series exists, because alerts need it"
        )
        assert visit.wrong == []


def metric(shop, name):
    """Return the samples of a metric by the values of their labels."""
    text = client_of(shop.app).get("/metrics").text
    families = {each.name: each for each in text_string_to_metric_families(text)}
    if name not in families:
        return {}
    return {
        tuple(value for _, value in sorted(sample.labels.items())): sample.value
        for sample in families[name].samples
    }
