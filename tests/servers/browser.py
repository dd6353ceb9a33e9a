"""Closes the browser of this test process before tests that use none.

Its driver keeps an event loop running in the thread of the tests. Whether the next test needs the
browser is known only when that test begins: the one that was to follow may have moved to another
process.
"""

from typing import Protocol


class Closes(Protocol):
    """Something that can be closed, and opened again."""

    def close(self) -> None:
        """Close it."""
        ...


_open: list[Closes] = []


def note_open(browser: Closes) -> None:
    """Note a browser that is to be closed."""
    _open.append(browser)


def close_open() -> None:
    """Close what is open."""
    while _open:
        _open.pop().close()
