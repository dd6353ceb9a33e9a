"""Fixtures that the tests of all engines share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.counter import EffectCounter


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[EffectCounter]:
    """Yield a counter of effects, in its own process."""
    with EffectCounter(tmp_path / "effects") as counter:
        yield counter
