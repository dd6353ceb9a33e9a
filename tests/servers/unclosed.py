"""Reports where an unclosed SQLite connection was opened.

Python warns of such a connection at its garbage collection, often during a later, unrelated test.
This plugin adds the test and the line that opened the connection to the report.
"""

import os
import re
import sys
import traceback
from collections import defaultdict, deque
from collections.abc import Generator
from typing import Any

import pytest

_UNCLOSED = re.compile(r"unclosed database in <sqlite3\.Connection object at (0x[0-9a-f]+)>")
_FRAMES = 12
_KEPT = 3
"""The newest connection at an address may not be the one that the warning is about."""


class Unclosed:
    """A pytest plugin for each process that runs tests."""

    def __init__(self) -> None:
        self._opened: dict[str, deque[str]] = defaultdict(lambda: deque(maxlen=_KEPT))
        # The event carries the new connection, whichever function opened it.
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "sqlite3.connect/handle":
            test = os.environ.get("PYTEST_CURRENT_TEST", "no test")
            stack = traceback.StackSummary.extract(
                traceback.walk_stack(sys._getframe(1)), limit=_FRAMES, lookup_lines=False
            )
            places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in stack)
            self._opened[hex(id(args[0]))].append(f"{test}\n  {places}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Name the tests that opened the connections in the warning."""
        report = yield
        if report.failed:
            for address in sorted(set(_UNCLOSED.findall(report.longreprtext))):
                opened = "\n".join(self._opened[address])
                report.sections.append((f"connections opened at {address}", opened))
        return report
