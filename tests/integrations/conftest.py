"""Fixtures that the tests of all engines share."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from duly.guard import Guard
from tests.integrations.counter import EffectCounter
from tests.integrations.engine_shop import EngineShop


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[EffectCounter]:
    """Yield a counter of effects, in its own process."""
    with EffectCounter(tmp_path / "effects") as counter:
        yield counter


@pytest.fixture
def guard(store_url: str) -> Iterator[Guard]:
    """Yield a guard on a fresh store of each kind."""
    with closing(Guard(store_url, lease=2)) as guard:
        yield guard


@pytest.fixture
def shop(open_shop: Callable[[str], EngineShop], store_url: str) -> EngineShop:
    """The shop of the engine of a folder, whose guard is on the store of this test."""
    return open_shop(store_url)
