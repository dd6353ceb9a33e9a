"""The pytest plugin: fixtures for tests of applications.

It is a package of its own, so that pytest loads duly only for tests that use a fixture.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from duly.app import Duly
    from duly.testing.harness import Harness
    from duly.testing.stores import FreshStore

POSTGRES = "DULY_TEST_POSTGRES"
_KINDS = ("sqlite", "postgres")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a project name its application once."""
    parser.addini("duly_app", "the application under test, as module:attribute", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        'duly(app="module:attribute", store="sqlite"): which application duly_app is, and on which '
        f"database: sqlite or postgres (a server that {POSTGRES} names)",
    )


@pytest.fixture
def duly_worker(request: pytest.FixtureRequest, tmp_path: Path) -> "Iterator[Harness]":
    """Runs the application's tasks in this thread, on a store for this test."""
    from duly.testing.harness import Harness  # noqa: PLC0415 - only for tests that use it
    from duly.testing.stores import PostgresTestStore, SqliteTestStore  # noqa: PLC0415 - as above

    marker = request.node.get_closest_marker("duly")
    options: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
    kind = options.pop("store", "sqlite")
    named = options.pop("app", None) or request.config.getini("duly_app")
    if options or kind not in _KINDS:
        _refuse('@pytest.mark.duly takes app= and store="sqlite" or "postgres"')
    if kind == "postgres" and not os.environ.get(POSTGRES):
        _refuse(
            f"{POSTGRES} names no server: set it to the address of a PostgreSQL server that allows "
            "creating databases, such as postgresql://postgres@localhost/postgres"
        )
    app = _application(named)
    store: FreshStore = SqliteTestStore(tmp_path)
    if kind == "postgres":
        store = PostgresTestStore(os.environ[POSTGRES])
    harness = Harness(app, store)
    yield harness
    harness.close()


@pytest.fixture
def duly_app(duly_worker: "Harness") -> "Duly":
    """The application under test, on a store for this test."""
    return duly_worker.app


def _refuse(text: str) -> NoReturn:
    """Fail the test with this sentence. A traceback of the plugin's code would not help."""
    pytest.fail(text, pytrace=False)


def _application(reference: str) -> "Duly":
    from duly.settings import load_settings  # noqa: PLC0415 - as above
    from duly.worker.app_loader import load  # noqa: PLC0415 - only for tests that use it

    named = reference or load_settings().app
    if not named:
        # An application made here would have none of the project's tasks. The project's own
        # application would enqueue into the project's database.
        _refuse(
            "duly_app is not set: write duly_app = module:attribute in pytest.ini, app = "
            '"module:attribute" in [tool.duly], or use @pytest.mark.duly(app=…) on the test'
        )
    found: Duly = load(named)
    return found
