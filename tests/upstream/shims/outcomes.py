"""A pytest plugin that writes the outcome of each test as JSON, to UPSTREAM_OUTCOMES."""

import json
import os
from pathlib import Path

import pytest

_RANK = {"passed": 0, "skipped": 1, "failed": 2}


class Outcomes:
    """The worst outcome of each test over its phases."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    @pytest.hookimpl
    def pytest_collection_modifyitems(self, items):
        for item in items:
            self._found[item.nodeid] = "failed"  # Until it has ended.

    @pytest.hookimpl
    def pytest_collectreport(self, report):
        if report.failed:
            self._found[report.nodeid] = "failed"

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.when == "setup" or _RANK[report.outcome] > _RANK[self._found[report.nodeid]]:
            self._found[report.nodeid] = report.outcome

    @pytest.hookimpl
    def pytest_sessionfinish(self):
        target = Path(os.environ["UPSTREAM_OUTCOMES"])
        target.write_text(json.dumps(self._found, indent=1, sort_keys=True))


def pytest_configure(config):
    config.pluginmanager.register(Outcomes(), "upstream-outcomes")
