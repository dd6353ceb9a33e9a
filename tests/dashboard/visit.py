"""A browser visit to the dashboard that records all errors."""

import re
from typing import Any, Self

from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Request, Response

DEADLINE = 30_000
"""Milliseconds after which an expected element counts as missing."""
EXPECTED = (
    "Failed to load resource: the server responded with a status of 4",
    "The Cross-Origin-Opener-Policy header has been ignored",
)
"""Expected console messages: refused requests, and pages over plain HTTP."""
TOKEN = "Vz3kQ9mX-7bRtY2wLp8cJ5nHs0dFgA4u"  # noqa: S105 - for these tests only
RUN_ID = re.compile(r"/runs/([0-9a-f]{8}-[0-9a-f-]{27})$")


class Visit:
    """A page, with its errors and its requests to other hosts."""

    def __init__(self, browser: Browser, address: str, **options: Any) -> None:
        settings = {"viewport": {"width": 1440, "height": 900}} | options
        self.context = browser.new_context(**settings)
        self.context.set_default_timeout(DEADLINE)
        self.page = self.context.new_page()
        self.address = address
        self.wrong: list[str] = []
        self.elsewhere: list[str] = []
        self.page.on("console", self._note)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("response", self._check)
        self.page.on("request", self._watch)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()

    def go(self, path: str = "/") -> Page:
        """Open a page of the dashboard."""
        self.page.goto(self.address + path, wait_until="load")
        return self.page

    def stay(self) -> None:
        """Mark the current document. A reloaded document has no mark."""
        self.page.evaluate("window.stayed = true")

    @property
    def has_stayed(self) -> bool:
        """Return whether the document is still the marked one."""
        return bool(self.page.evaluate("window.stayed === true"))

    def runs(self) -> list[str]:
        """Return the ids of the listed runs, from top to bottom."""
        links = self.page.locator("main tbody a[href*='/runs/']")
        found = links.evaluate_all("links => links.map(link => link.href)")
        return list(dict.fromkeys(match[1] for link in found if (match := RUN_ID.search(link))))

    def section(self, heading: str) -> Locator:
        """Return the part of the page that has this heading."""
        titled = self.page.get_by_role("heading", name=heading, exact=True)
        return self.page.locator("main section").filter(has=titled)

    def press(self, button: str) -> None:
        """Press a button that leads to another page, and wait for that page."""
        with self.page.expect_navigation():
            self.page.get_by_role("button", name=button).click()

    def confirm(self, button: str, then: str, *, reason: str = "") -> None:
        """Press a button that asks for confirmation, and confirm."""
        self.press(button)
        self.page.get_by_label("Why").fill(reason)
        self.press(then)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(EXPECTED):
            self.wrong.append(message.text)

    def _check(self, response: Response) -> None:
        if "/static/" in response.url and not response.ok:
            self.wrong.append(f"{response.status} for {response.url}")

    def _watch(self, request: Request) -> None:
        if not request.url.startswith(self.address):
            self.elsewhere.append(request.url)
