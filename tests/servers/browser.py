"""Closes the browser of this test process before tests without a browser.

The driver keeps an event loop running in the thread of the tests. Only the start of the next test
shows whether it needs the browser, because the planned test may have moved to another process.
"""

from typing import Protocol


class Closes(Protocol):
    """A resource that can be closed and reopened."""

    def close(self) -> None:
        """Close the resource."""
        ...


_open: list[Closes] = []


def note_open(browser: Closes) -> None:
    """Register an open browser."""
    _open.append(browser)


def close_open() -> None:
    """Close all registered browsers."""
    while _open:
        _open.pop().close()
