"""Stores whose time a test moves, on each database."""

from pathlib import Path

import pytest

from duly.testing import PostgresTestStore, SqliteTestStore
from duly.testing.stores import FreshStore


def fresh_store(kind: str, folder: Path, request: pytest.FixtureRequest) -> FreshStore:
    """Return a new store of a kind, for a harness."""
    if kind.startswith("sqlite"):
        return SqliteTestStore(folder)
    return PostgresTestStore(request.getfixturevalue("store_url"))
