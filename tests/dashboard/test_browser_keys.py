"""The keyboard, the themes and motion, in a real browser."""

from contextlib import ExitStack

import pytest

from duly.dashboard import TokenAuth, dashboard
from tests.dashboard.conftest import opened
from tests.dashboard.visit import TOKEN, Visit

pytestmark = [pytest.mark.browser, pytest.mark.timeout(120)]

PLACES = {
    "r": "/runs",
    "d": "/dead",
    "s": "/schedules",
    "q": "/queues",
    "w": "/workers",
    "t": "/tasks",
    "a": "/audit",
    "o": "/",
}
THEME = "() => document.documentElement.dataset.theme ?? 'system'"
PAPER = "() => getComputedStyle(document.body).backgroundColor"
FOCUS_IS_OUTSIDE = """dialog => {
    const at = document.activeElement;
    return at !== document.body && !dialog.contains(at);
}"""
NOTE_THEME = """
new MutationObserver(() => { window.themed ??= document.body === null ? "before" : "after"; })
    .observe(document, {subtree: true, attributes: true, attributeFilter: ["data-theme"]});
"""
MOVING = "() => document.getAnimations().length"
CHANGING = """() => [...document.querySelectorAll("*")].filter((element) => {
    const {transitionDuration, animationName} = getComputedStyle(element);
    return transitionDuration !== "0s" || animationName !== "none";
}).length"""


def test_keys_navigate_select_and_open(busy, address, browser):
    with Visit(browser, address) as visit:
        page = visit.go("/")
        for key, path in PLACES.items():
            page.keyboard.type(f"g{key}")
            page.wait_for_url(address + path)
        page = visit.go("/runs")
        chosen = visit.runs()[1]
        box = page.locator(f"#r{chosen}").get_by_role("checkbox")
        for key in "jjjkx":
            page.keyboard.press(key)
        assert box.is_checked()
        page.keyboard.press("x")
        assert not box.is_checked()

        page.keyboard.press("/")
        page.keyboard.type("g d x?t r j")
        assert page.get_by_label("Filter", exact=True).input_value() == "g d x?t r j"
        assert page.evaluate(THEME) == "system"
        assert not page.get_by_role("dialog").is_visible()
        page.get_by_role("heading", level=1).click()
        new = busy.nothing.enqueue(1)
        page.wait_for_selector(f"#r{new.id}")
        page.keyboard.press("Enter")  # The selected row has not changed.
        page.wait_for_url(f"**/runs/{chosen}")
        assert visit.wrong == []


def test_the_help_dialog_keeps_the_focus_and_returns_it(busy, address, browser):
    with Visit(browser, address) as visit:
        page = visit.go("/runs")
        visit.stay()
        link = page.get_by_role("link", name="Queues")
        link.focus()
        page.keyboard.press("?")
        dialog = page.get_by_role("dialog", name="Keys")
        dialog.wait_for()
        for key in ("Tab", "Tab", "Tab", "Shift+Tab", "Shift+Tab"):
            page.keyboard.press(key)
            assert not dialog.evaluate(FOCUS_IS_OUTSIDE), key
        for key in ("t", "g", "d", "r", "/", "j"):
            page.keyboard.press(key)
        assert dialog.is_visible()
        assert page.evaluate(THEME) == "system"

        page.keyboard.press("Escape")
        dialog.wait_for(state="hidden")
        assert link.evaluate("link => link === document.activeElement")
        assert visit.has_stayed
        assert visit.wrong == []


def test_a_theme_persists_and_applies_before_anything_is_drawn(busy, serve, browser):
    address = serve(opened(busy.app))
    closed = serve(dashboard(busy.app, auth=TokenAuth(TOKEN)))
    with Visit(browser, address, color_scheme="light") as visit:
        page = visit.page
        page.add_init_script(NOTE_THEME)
        visit.go("/queues")
        light = page.evaluate(PAPER)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(PAPER)
        assert dark != light, "the theme of the system"
        for theme in ("light", "dark"):
            page.keyboard.press("t")
            assert page.evaluate(THEME) == theme
            assert page.evaluate(PAPER) == (light if theme == "light" else dark)
        page.emulate_media(color_scheme="light")
        for path in ("/queues", "/runs"):
            visit.go(path)
            assert page.evaluate("() => window.themed") == "before"
            assert page.evaluate(PAPER) == dark
        page.get_by_role("button", name="Theme: dark").click()
        assert page.evaluate(THEME) == "system"
        assert page.evaluate(PAPER) == light
        assert visit.wrong == []
    with Visit(browser, closed, color_scheme="dark") as visit:
        assert visit.go("/").evaluate(PAPER) == dark
        assert visit.page.url.endswith("/login")


def test_nothing_moves_when_the_browser_asks_for_reduced_motion(shop, serve, browser):
    address = serve(opened(shop.app))
    with shop.app.worker(), ExitStack() as last:
        last.callback(shop.released.set)
        run = shop.nightly.enqueue()
        assert shop.started.wait(30)
        with Visit(browser, address, reduced_motion="reduce") as visit:
            page = visit.go(f"/runs/{run.id}")
            assert page.evaluate(MOVING) == page.evaluate(CHANGING) == 0
            page.emulate_media(reduced_motion="no-preference")
            page.wait_for_function("() => document.getAnimations().length > 0")
