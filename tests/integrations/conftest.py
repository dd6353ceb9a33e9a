"""What the tests of all engines share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integrations.counter import EffectCounter


@pytest.fixture
def counter(tmp_path: Path) -> Iterator[EffectCounter]:
    """Counts effects, in a process of its own."""
    with EffectCounter(tmp_path / "effects") as counter:
        yield counter
