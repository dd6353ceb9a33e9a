"""What the tests of all engines share."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from duly import Duly
from duly.testing import Harness
from tests.integrations.counter import EffectCounter
from tests.servers.fresh import fresh_store


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[EffectCounter]:
    """Counts effects, in a process of its own."""
    with EffectCounter(tmp_path / "effects") as counter:
        yield counter


@pytest.fixture
def harness(store_kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Harness]:
    """The harness of an application without tasks, whose time the test moves."""
    app = Duly("sqlite:///never-opened.db")
    with closing(Harness(app, fresh_store(store_kind, tmp_path, request))) as harness:
        yield harness
