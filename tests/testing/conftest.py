"""An application of a user's, under the harness, on each database."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import Duly
from duly.testing import Harness
from tests.servers.fresh import fresh_store


@pytest.fixture
def harness(store_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The harness of an application without tasks."""
    fresh = fresh_store(store_kind, tmp_path, request)
    harness = Harness(Duly("sqlite:///never-opened.db"), fresh)
    yield harness
    harness.close()


@pytest.fixture
def app(harness: Harness) -> Duly:
    """That application."""
    return harness.app
