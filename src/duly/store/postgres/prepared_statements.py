"""Prepared statements that run alone, in one round trip, with texts for parameters.

The driver's cursors decide for each value and each statement how to send it. On a connection that
was idle for a moment, as an idle worker's is, this takes as long as all work on the server.
"""

from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.generators import execute
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult

from duly.store.postgres.arrays import refuse_nul


class _PreparedStatement(NamedTuple):
    name: bytes
    order: tuple[str, ...]
    """The names of the parameters, in the order of their numbers."""


class PreparedStatements:
    """The prepared statements of one connection. No transaction may be open on it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._known: dict[str, _PreparedStatement] = {}
        self._numbers = count()
        """Numbers are never reused: the server may know a statement that this object forgot."""
        self._rows = Transformer(connection)

    def run(self, sql: str, parameters: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        """Execute a statement with `%(name)s` parameters as a transaction of its own."""
        try:
            result = self._send(sql, parameters)
        except psycopg.errors.InvalidSqlStatementName:
            # After a ROLLBACK the driver deallocates all statements, also these. Nothing was run.
            self._known.clear()
            result = self._send(sql, parameters)
        if result.status != ExecStatus.TUPLES_OK:
            return []
        self._rows.set_pgresult(result)
        rows = self._rows.load_rows(0, result.ntuples, tuple)
        self._rows.set_pgresult(None)
        return rows

    def _send(self, sql: str, parameters: Mapping[str, Any]) -> PGresult:
        known = self._known.get(sql) or self._prepare(sql)
        values = [_encoded(parameters[name]) for name in known.order]
        self._connection.pgconn.send_query_prepared(known.name, values)
        return self._finish()

    def _prepare(self, sql: str) -> _PreparedStatement:
        places = _ParameterNumbers()
        numbered = sql % places
        known = _PreparedStatement(f"duly_{next(self._numbers)}".encode(), tuple(places.numbers))
        self._connection.pgconn.send_prepare(known.name, numbered.encode())
        self._finish()
        self._known[sql] = known
        return known

    def _finish(self) -> PGresult:
        # This waits as the driver's own cursors do, so that Ctrl-C interrupts it.
        results: list[PGresult] = self._connection.wait(execute(self._connection.pgconn))
        for result in results:
            if result.status == ExecStatus.FATAL_ERROR:
                raise error_from_result(result)
        return results[-1]


class _ParameterNumbers:
    """Numbers the parameters in the order of their first use in a statement."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def __getitem__(self, name: str) -> str:
        return f"${self.numbers.setdefault(name, len(self.numbers) + 1)}"


def _encoded(value: str | int | None) -> bytes | None:
    if value is None:
        return None
    text = str(value)
    if "\0" in text:
        refuse_nul()
    return text.encode()
