"""The address of a store that lies in one of Django's databases."""

import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
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
"""Options that Django and psycopg take, and that the server's library does not know."""


def url_of(alias: str) -> str:
    """Return the address of a database of Django's, the one for tests while those run."""
    connection = connections[alias]
    # Those of all threads: a thread's own connection may be older than they are.
    settings: dict[str, Any] = connections.settings[alias]
    if connection.vendor == "sqlite":
        name = str(settings["NAME"])
        if is_in_memory(alias):
            raise ImproperlyConfigured(
                f"the database {alias!r} is in memory, where no worker could see its runs"
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
    """Lends the connection that Django uses in this thread."""

    def __init__(self, alias: str) -> None:
        self._alias = alias

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """Lend it as it is."""
        connection = connections[self._alias]
        connection.ensure_connection()
        yield connection.connection

    @contextmanager
    def writing(self) -> Iterator[Any]:
        """Lend it with a transaction or a savepoint of Django's open on it."""
        with transaction.atomic(using=self._alias):
            yield connections[self._alias].connection


def external_store(alias: str) -> Store:
    """Return a store on whichever connection Django uses at the time."""
    lender, vendor = DjangoConnectionProvider(alias), connections[alias].vendor
    if vendor == "postgresql":
        from duly.store.postgres.external import ExternalPostgresStore  # noqa: PLC0415 - one driver

        return ExternalPostgresStore(lender, url_of(alias))
    if vendor != "sqlite":
        url_of(alias)  # Says what is wrong.
    from duly.store.sqlite.external import ExternalSqliteStore  # noqa: PLC0415 - one driver only

    path = None if is_in_memory(alias) else sqlite_path(url_of(alias))
    return ExternalSqliteStore(lender, path)


def is_in_memory(alias: str) -> bool:
    """Say whether a database is SQLite's in memory, as those of tests are."""
    name = str(connections.settings[alias]["NAME"])
    return name == ":memory:" or "mode=memory" in name


def is_only_connection(alias: str) -> bool:
    """Return whether only Django's connection in this thread can use a database now.

    Others cannot reach one in memory, wait for an open transaction on SQLite, and do not see what
    a `TestCase` wrote, which is never committed.
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
    """Return whether a test runner of Django's has set up this process for its tests."""
    # Looked up, since importing it would import all that Django has for tests.
    utils: Any = sys.modules.get("django.test.utils")
    return utils is not None and hasattr(utils._TestState, "saved_data")  # noqa: SLF001 - no other


def transaction_limit_seconds(alias: str) -> float:
    """Return how long the transaction of a body may be open: on SQLite everybody waits for it."""
    is_sqlite = connections[alias].vendor == "sqlite"
    return SQLITE_TRANSACTION_SECONDS if is_sqlite else POSTGRES_TRANSACTION_SECONDS


class WriterLock:
    """The lock by which writers of a store in SQLite's file take turns; PostgreSQL has none."""

    def __init__(self, store: Store) -> None:
        self._lock: Any = getattr(store, "lock", None)
        self._is_held = False
        self._mutex = threading.Lock()

    def acquire(self) -> None:
        """Wait for it."""
        if self._lock is not None:
            self._lock.acquire()
            self._is_held = True

    def release(self) -> None:
        """Let the next writer go on; said again, do nothing."""
        with self._mutex:
            is_held, self._is_held = self._is_held, False
        if is_held:
            self._lock.release()


def roll_back_from_timer(alias: str, raw: Any, using: AbstractContextManager[Any]) -> None:  # noqa: ANN401 - the driver's own
    """Roll back the transaction of another thread, which uses the connection under this lock."""
    with suppress(Exception):  # It ends some way or other; whoever uses it is told why.
        if connections[alias].vendor == "sqlite":
            raw.interrupt()
        else:
            raw.cancel()
    with using, suppress(Exception):
        raw.rollback()
