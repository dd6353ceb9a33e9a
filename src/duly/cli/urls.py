"""What can be told of a store by its address alone, without opening it."""

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
    """Return the package that holds the SQL for the database that an address names."""
    scheme = url.partition("://")[0]
    if scheme not in _PACKAGES:
        message = (
            f"{shown_scheme(url)} is not a supported store URL; use sqlite:///file.db or "
            "postgresql://user@host/database"
        )
        raise StoreRefused(message)
    return _PACKAGES[scheme]


def missing_file(url: str) -> Path | None:
    """Return the file that opening this address would create, if any."""
    if not url.startswith("sqlite://"):
        return None
    path = sqlite_path(url)
    return None if path.exists() else path


def masked(url: str) -> str:
    """Return an address as it may be shown: an absolute path, or no password."""
    if url.startswith("sqlite://"):
        return str(sqlite_path(url))
    return shown_address(url)
