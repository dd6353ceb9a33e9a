"""The address of a store in one of Django's databases."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction

from duly.limits import POSTGRES_TRANSACTION_SECONDS, SQLITE_TRANSACTION_SECONDS
from duly.store.protocol import Store
from duly.store.store_factory import sqlite_path

_OF_DJANGO = frozenset(
    {"assume_role", "isolation_level", "pool", "server_side_binding", "cursor_factory", "context"}
)
"""Options of Django and psycopg that libpq does not know."""


def url_of(alias: str) -> str:
    """Return the address of a Django database, or of its test database while tests run."""
    connection = connections[alias]
    # The settings of all threads. A thread's own connection may be older than they are.
    settings: dict[str, Any] = connections.settings[alias]
    if connection.vendor == "sqlite":
        name = str(settings["NAME"])
        if is_in_memory(alias):
            raise ImproperlyConfigured(
                f"the database {alias!r} is in memory, where no worker could see its runs; "
                "use a file or PostgreSQL"
            )
        return f"sqlite:///{quote(str(Path(name).absolute()))}"
    if connection.vendor == "postgresql":
        return _postgresql(settings)
    raise ImproperlyConfigured(
        f"the database {alias!r} is a {connection.display_name}; duly stores runs in SQLite or "
        "PostgreSQL: set such a database with OPTIONS={'database': …} or {'url': …}"
    )


def _postgresql(settings: dict[str, Any]) -> str:
    given = {
        "dbname": settings["NAME"],
        "user": settings["USER"],
        "password": settings["PASSWORD"],
        "host": settings["HOST"],
        "port": settings["PORT"],
    }
    options = {name: value for name, value in settings["OPTIONS"].items() if name not in _OF_DJANGO}
    found = {
        name: str(value) for name, value in (given | options).items() if value not in {"", None}
    }
    return f"postgresql://?{urlencode(found, quote_via=quote)}"


class DjangoConnectionProvider:
    """Provides the connection that Django uses in this thread."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Provide the connection as it is."""
        connection = connections[self._alias]
        connection.ensure_connection()
        yield connection.connection

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Provide the connection with an open Django transaction or savepoint."""
        with transaction.atomic(using=self._alias):
            yield connections[self._alias].connection


def external_store(alias: str) -> Store:
    """Return a store that uses Django's current connection."""
    lender, vendor = DjangoConnectionProvider(alias), connections[alias].vendor
    if vendor == "postgresql":
        from duly.store.postgres.external import ExternalPostgresStore  # noqa: PLC0415 - one driver

        return ExternalPostgresStore(lender, url_of(alias))
    if vendor != "sqlite":
        url_of(alias)  # Raises the error for this database.
    from duly.store.sqlite.external import ExternalSqliteStore  # noqa: PLC0415 - one driver only

    path = None if is_in_memory(alias) else sqlite_path(url_of(alias))
    return ExternalSqliteStore(lender, path)


def is_in_memory(alias: str) -> bool:
    """Return whether a database is an SQLite database in memory, as in tests."""
    name = str(connections.settings[alias]["NAME"])
    return name == ":memory:" or "mode=memory" in name


def is_only_connection(alias: str) -> bool:
    """Return whether only Django's connection in this thread can use a database now.

    Other connections cannot reach a database in memory. On SQLite they wait for an open
    transaction. They do not see what a `TestCase` wrote, because it is never committed.
    """
    connection = connections[alias]
    is_locked = connection.vendor == "sqlite" and connection.in_atomic_block
    return is_locked or is_in_memory(alias) or is_in_test_case(alias)


def is_in_test_case(alias: str) -> bool:
    """Return whether this thread is in the transaction that a `TestCase` rolls back."""
    return any(
        getattr(block, "_from_testcase", False) for block in connections[alias].atomic_blocks
    )


def is_testing() -> bool:
    """Return whether a Django test runner has set up this process."""
    # Looked up in sys.modules, since an import would load all of Django's test support.
    utils: Any = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")  # noqa: SLF001 - no public way


def transaction_limit_seconds(alias: str) -> float:
    """Return how long a task transaction may be open. On SQLite it blocks all other writers."""
    is_sqlite = connections[alias].vendor == "sqlite"
    return SQLITE_TRANSACTION_SECONDS if is_sqlite else POSTGRES_TRANSACTION_SECONDS
