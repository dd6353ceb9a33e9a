"""Counts the statements that a store sends to its database, and on PostgreSQL the round trips."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.servers.wiretap import Wiretap


class Cost(NamedTuple):
    """The cost of one call."""

    round_trips: int
    """0 on SQLite, which has no server."""
    statements: int


class Counter(Protocol):
    """Counts the statements after `begin`."""

    url: str
    """The URL at which a store has to be opened to be counted."""

    def begin(self) -> None: ...
    def cost(self) -> Cost: ...
    def statements(self) -> list[str]: ...


class SqliteCounter:
    """Counts the statements of connections that are opened while it patches `sqlite3.connect`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._statements: list[str] = []

    def begin(self) -> None:
        """Forget the statements executed so far."""
        self._statements.clear()

    def cost(self) -> Cost:
        """Return the number of executed statements."""
        return Cost(0, len(self._statements))

    def statements(self) -> list[str]:
        """Return the executed statements."""
        return list(self._statements)

    def note(self, statement: str) -> None:
        """Record a statement of the store.

        SQLite reports its own statements as comments. For each statement of a trigger, the driver
        reports the write that fires it once more, so a write that equals the one before it counts
        once.
        """
        text = " ".join(statement.split())
        is_repeated = self._statements[-1:] == [text] and not text.startswith("SELECT")
        if not text.startswith("--") and not is_repeated:
            self._statements.append(text)


class PostgresCounter:
    """Counts the statements of all connections through a proxy."""

    def __init__(self, url: str, tap: Wiretap) -> None:
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        place = f"127.0.0.1:{tap.port}"
        netloc = f"{login}@{place}" if login else place
        # The proxy reads the messages, so the client must not encrypt them.
        self.url = parts._replace(
            netloc=netloc, query="sslmode=disable&gssencmode=disable"
        ).geturl()
        self.tap = tap

    def begin(self) -> None:
        """Forget the statements sent so far."""
        self.tap.begin()

    def cost(self) -> Cost:
        """Return the numbers of statements and round trips."""
        found = self.tap.exchange()
        return Cost(found.round_trips, len(found.statements))

    def statements(self) -> list[str]:
        """Return the executed statements."""
        return self.tap.exchange().statements


@contextmanager
def counting(url: str) -> Iterator[Any]:
    """Yield a counter for the store at a URL."""
    if url.startswith("sqlite:"):
        with pytest.MonkeyPatch.context() as patch:
            yield _listening_counter(url, patch)
        return
    place = conninfo_to_dict(url)
    with Wiretap(str(place["host"]), int(place.get("port") or 5432)) as tap:
        yield PostgresCounter(url, tap)


def _listening_counter(url: str, patch: pytest.MonkeyPatch) -> SqliteCounter:
    counter, plain = SqliteCounter(url), sqlite3.connect

    def connect(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = plain(*args, **options)
        connection.set_trace_callback(counter.note)
        return connection

    patch.setattr(sqlite3, "connect", connect)
    return counter
