"""A separate database for one test of a user, with a clock that the test controls."""

from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from duly.clock import new_id
from duly.store.postgres.address import Address
from duly.store.postgres.failures import translated
from duly.store.statements import load

SQL = load("postgres", "testing")


class FreshDatabase:
    """A database with a unique name on the server of an address."""

    def __init__(self, url: str) -> None:
        self._server = Address(url)
        self._name = f"duly_test_{new_id().replace('-', '')}"
        self._administer(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(self._name)))
        given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value}
        place = urlencode(given | {"dbname": self._name}, quote_via=quote)
        self.url = f"postgresql://?{place}"

    def drop(self) -> None:
        """Drop the database, even with open connections."""
        self._administer(
            sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(self._name))
        )

    def _administer(self, statement: sql.Composed) -> None:
        try:
            with psycopg.connect(autocommit=True, **self._server.parameters) as connection:
                connection.execute(statement)
        except psycopg.Error as error:
            raise translated(error, self._server) from error


class ServerClock:
    """The clock of a store in such a database. The server reads it from a table of one row."""

    def __init__(self, url: str) -> None:
        self._address = Address(url)
        for name in ("clock_table", "clock_begins", "clock_function"):
            self._execute(SQL[name])

    def now(self) -> int:
        """Return the wall time of the store, in microseconds."""
        ((found,),) = self._execute(SQL["clock_time"])
        return int(found)

    def advance(self, microseconds: int) -> None:
        """Advance the clock."""
        self._execute(SQL["clock_advance"], {"microseconds": microseconds})

    def _execute(self, statement: str, place: dict[str, Any] | None = None) -> list[Any]:
        with psycopg.connect(autocommit=True, **self._address.parameters) as connection:
            cursor = connection.execute(statement, place)
            return cursor.fetchall() if cursor.description else []
