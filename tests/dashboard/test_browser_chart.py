"""The chart of the overview in a real browser: drawn by a script, or else by the server."""

import pytest
from playwright.sync_api import expect

from duly import Retry, current
from tests.dashboard.conftest import opened
from tests.dashboard.visit import Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

INK = "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data"
DRAWN = f"canvas => ({INK})(canvas).reduce((sum, part) => (sum * 31 + part) % 1000003, 7)"
"""A checksum of the drawing."""


def drag(page, begin, end):
    """Drag the pointer over a part of the chart, given as fractions of its width."""
    box = page.locator(".u-over").bounding_box()
    page.mouse.move(box["x"] + begin * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], box["y"] + 60, steps=5)
    page.mouse.up()


def test_a_chart_shows_values_and_can_be_zoomed_filtered_and_read_as_a_table(
    busy, address, browser
):
    @busy.app.task(name="shop.orders:flaky", retries=Retry(2, base=0.01, jitter=False))
    def flaky():
        if current().attempt < 3:
            raise ConnectionError("again")

    with busy.app.worker():
        flaky.enqueue().result(timeout=30)
    with Visit(browser, address) as visit:
        page = visit.go("/")
        canvas, tip = page.locator(".plot-area canvas"), page.locator(".plot-tip")
        expect(canvas).to_be_visible()
        expect(page.locator(".drawn")).to_be_hidden()

        page.locator(".plot-area").focus()
        page.keyboard.press("ArrowLeft")
        expect(tip).to_contain_text("13 failed")
        expect(tip).to_contain_text("2 attempts retried")
        page.get_by_text("As a table").first.click()
        newest = page.locator("[data-ends]").first
        assert newest.locator("td").nth(2).inner_text() == "13"

        whole = canvas.evaluate(DRAWN)
        failed = page.get_by_role("button", name="failed", exact=True)
        failed.click()
        expect(failed).to_have_attribute("aria-pressed", "false")
        assert canvas.evaluate(DRAWN) != whole
        failed.click()

        reset = page.get_by_role("button", name="Whole time")
        expect(reset).to_be_hidden()
        drag(page, 0.5, 0.8)
        expect(reset).to_be_visible()
        reset.click()
        expect(reset).to_be_hidden()

        light = canvas.evaluate(DRAWN)
        page.emulate_media(color_scheme="dark")
        page.wait_for_function(
            f"light => ({DRAWN})(document.querySelector('canvas')) !== light", arg=light
        )
        assert visit.wrong == [], "the chart violates no content security policy"
        assert visit.elsewhere == []


def test_a_chart_shows_new_runs_and_stays_zoomed(busy, address, browser):
    with Visit(browser, address) as visit:
        page = visit.go("/?window=1h")
        visit.stay()
        page.locator(".plot-area canvas").wait_for()
        drag(page, 0.5, 0.995)
        ended = page.locator("#ended").inner_text()

        busy.pack.enqueue("vase")
        busy.app.worker().drain()

        expect(page.locator("#ended")).not_to_have_text(ended)
        expect(page.get_by_role("button", name="Whole time")).to_be_visible()
        expect(page.locator(".plot-area canvas")).to_be_visible()
        assert visit.has_stayed
        assert visit.wrong == []


@pytest.mark.stores("sqlite")  # The drawing does not depend on the database.
def test_without_scripts_the_page_shows_the_chart_of_the_server(busy, serve, browser):
    with Visit(browser, serve(opened(busy.app)), java_script_enabled=False) as visit:
        page = visit.go("/")

        expect(page.get_by_role("img", name="runs ended").first).to_be_visible()
        page.get_by_text("As a table").first.click()
        expect(page.locator("[data-ends]").first).to_be_visible()
