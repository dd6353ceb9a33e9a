"""What can be told of a store by its address alone, without opening it."""

from duly.errors import StoreRefused
from duly.store.opening import sqlite_path

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
            f"{scheme!r} is no store duly knows; use sqlite:///file.db or "
            f"postgresql://user@host/database"
        )
        raise StoreRefused(message)
    return _PACKAGES[scheme]


def is_missing(url: str) -> bool:
    """Say whether opening it would create a file."""
    return url.startswith("sqlite://") and not sqlite_path(url).exists()
