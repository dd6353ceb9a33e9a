"""Workers and deployments in a real browser."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from duly.cli import commands
from tests.dashboard.conftest import opened
from tests.dashboard.doomed import BEAT, LEASE
from tests.dashboard.visit import Visit
from tests.servers.processes import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

ROOT = Path(__file__).parents[2]


@pytest.mark.process
def test_a_worker_that_is_killed_is_lost_and_its_run_is_taken_over(shop, store_url, serve, browser):
    run = shop.nightly.enqueue()
    # Only the worker of this process ends the run at once. In the killed process it waits.
    shop.released.set()
    command = [sys.executable, "-m", "tests.dashboard.doomed", store_url]
    with (
        subprocess.Popen(command, cwd=ROOT) as worker,
        Visit(browser, serve(opened(shop.app))) as visit,
    ):
        try:
            wait_until(
                lambda: shop.app.runs.get(run.id).state == "running",
                seconds=40,
                what="the worker has the run",
            )
            page = visit.go("/workers")
            visit.stay()
            card = page.get_by_role("region").filter(has_text=f"pid {worker.pid}")
            card.get_by_text("live").wait_for()
            assert "nightly" in card.inner_text()
        finally:
            worker.kill()
        with shop.app.worker(lease=max(6, LEASE), beat=BEAT):
            card.get_by_text("lost").first.wait_for()
            page.goto(f"{visit.address}/runs/{run.id}")
            page.locator("#run-state").get_by_text("succeeded").wait_for()
        visit.section("Attempts").get_by_text("lost", exact=True).click()
        visit.section("Attempts").get_by_text("taken over").wait_for()
        assert visit.wrong == []


def test_a_deployment_is_marked_on_the_chart(busy, store_url, address, browser):
    with Visit(browser, address) as visit:
        page = visit.go("/")
        visit.stay()
        told = CliRunner().invoke(commands, ["deploy-mark", "v1.4", "--url", store_url])
        assert told.exit_code == 0, told.output

        chart = page.get_by_role("group", name="runs ended")
        chart.get_by_text("v1.4", exact=True).wait_for()
        assert visit.has_stayed
        assert visit.wrong == []
