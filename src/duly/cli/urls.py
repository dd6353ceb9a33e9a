"""Derives facts about a store from its address, without opening it."""

from pathlib import Path

from duly.core.addresses import shown_address, shown_scheme
from duly.errors import StoreRefused
from duly.store.store_factory import sqlite_path

_PACKAGES = {
    "sqlite": "duly.store.sqlite",
    "postgresql": "duly.store.postgres",
    "postgres": "duly.store.postgres",
}


def package_of(url: str) -> str:
    """Return the package with the SQL for the database of an address."""
    scheme = url.partition("://")[0]
    if scheme not in _PACKAGES:
        message = (
            f"{shown_scheme(url)} is not a supported store URL; use sqlite:///file.db or "
            "postgresql://user@host/database"
        )
        raise StoreRefused(message)
    return _PACKAGES[scheme]


def missing_file(url: str) -> Path | None:
    """Return the file that opening this address would create, or None."""
    if not url.startswith("sqlite://"):
        return None
    path = sqlite_path(url)
    return None if path.exists() else path


def masked(url: str) -> str:
    """Return an address for display: an absolute path, or without a password."""
    if url.startswith("sqlite://"):
        return str(sqlite_path(url))
    return shown_address(url)
