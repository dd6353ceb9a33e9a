"""Applications on a fresh store of each kind, and one that has never opened its store."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from duly import Duly


@pytest.fixture
def app(store_url: str) -> Iterator[Duly]:
    """An application on a fresh store of each kind."""
    app = Duly(store_url)
    yield app
    app.close()


@pytest.fixture
def untouched(tmp_path: Path) -> Iterator[Duly]:
    """An application whose store must not even be opened: that file may not appear."""
    file = tmp_path / "untouched.db"
    app = Duly(f"sqlite:///{file}")
    yield app
    assert not file.exists(), "the store was opened"
