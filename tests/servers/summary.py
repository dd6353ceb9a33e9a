"""The closing table of a test run: the results per kind of store, and reasons for skips."""

import json
import platform
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.servers.kinds import StoreKind

STORE_PROPERTY = "store"
NO_STORE = "no database"


@dataclass(slots=True)
class Tally:
    """The results of the tests on one kind of store."""

    passed: int = 0
    failed: int = 0
    not_run: Counter[str] = field(default_factory=Counter)


class WhatRan:
    """A pytest plugin of the main process, which receives the reports of every worker."""

    def __init__(self, kinds: Mapping[str, StoreKind], summary_file: Path) -> None:
        self._kinds = kinds
        self._summary_file = summary_file
        self._reports: dict[str, list[pytest.TestReport]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep every phase of every test."""
        self._reports[report.nodeid].append(report)

    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, exitstatus: int
    ) -> None:
        """Print the table and write it to a file for programs."""
        tallies = self._tallies()
        self._write(tallies, exitstatus)
        terminalreporter.section("what ran on what")
        for line in self._table(tallies):
            terminalreporter.write_line(line)

    def _tallies(self) -> dict[str, Tally]:
        tallies = {name: Tally() for name in (*self._kinds, NO_STORE)}
        for reports in self._reports.values():
            for name in self._stores_of(reports):
                _count(reports, tallies[name])
        return tallies

    def _stores_of(self, reports: list[pytest.TestReport]) -> set[str]:
        named = {
            str(value)
            for report in reports
            for name, value in report.user_properties
            if name == STORE_PROPERTY
        }
        if named:
            return named
        # The report of a worker that died carries only the name of the test, no properties.
        parameters = re.split(r"[\[\]-]", reports[0].nodeid.partition("[")[2])
        by_name = {name for name in self._kinds if set(name.split("-")) <= set(parameters)}
        return by_name or {NO_STORE}

    def _reasons(self, name: str, tally: Tally) -> list[str]:
        missing = self._kinds[name].missing if name in self._kinds else None
        if missing is not None:
            return [missing]
        if tally.not_run:
            return sorted(tally.not_run)
        return [] if tally.passed or tally.failed else ["no test of this run asked for it"]

    def _table(self, tallies: Mapping[str, Tally]) -> list[str]:
        rows = [("kind", "on", "passed", "failed", "not run", "")]
        for name, tally in tallies.items():
            reasons = "; ".join(self._reasons(name, tally))
            rows.append(
                (
                    name,
                    self._kinds[name].runs_on if name in self._kinds else "",
                    str(tally.passed),
                    str(tally.failed),
                    str(tally.not_run.total()),
                    f"not run because: {reasons}" if reasons else "",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]

    def _write(self, tallies: Mapping[str, Tally], exit_status: int) -> None:
        summary = {
            "exit_status": int(exit_status),
            "python": platform.python_version(),
            "kinds": {
                name: {
                    "on": self._kinds[name].runs_on if name in self._kinds else None,
                    "passed": tally.passed,
                    "failed": tally.failed,
                    "not_run": tally.not_run.total(),
                    "not_run_because": self._reasons(name, tally),
                }
                for name, tally in tallies.items()
            },
        }
        self._summary_file.write_text(json.dumps(summary, indent=2) + "\n")


def _count(reports: list[pytest.TestReport], tally: Tally) -> None:
    """Count a test once, by the worst of its phases."""
    if any(report.failed for report in reports):
        tally.failed += 1
        return
    for report in reports:
        if report.skipped:
            tally.not_run[_reason(report)] += 1
            return
    tally.passed += 1


def _reason(report: pytest.TestReport) -> str:
    if isinstance(report.longrepr, tuple | list):
        return str(report.longrepr[2]).removeprefix("Skipped: ")
    return "it is expected to fail"
