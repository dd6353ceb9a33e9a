"""Executes a statement with a time limit that holds even if the network or the server hangs."""

import select
from collections.abc import Sequence
from typing import TYPE_CHECKING

from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus

from duly.clock import monotonic
from duly.errors import StoreUnavailable

if TYPE_CHECKING:
    from duly.store.postgres.connection import PostgresSession


def execute_within(
    session: "PostgresSession", sql: str, parameters: Sequence[str | None] = (), *, seconds: float
) -> list[tuple[str | None, ...]]:
    """Run a statement with `$1` parameters. Close the session if it takes longer than `seconds`."""
    pgconn = session.pgconn
    deadline = monotonic() + seconds
    texts = [None if text is None else text.encode() for text in parameters]
    pgconn.send_query_params(sql.encode(), texts)
    readiness = select.poll()
    rows: list[tuple[str | None, ...]] = []
    failed = None
    while True:
        unsent = pgconn.flush()
        readiness.register(pgconn.socket, select.POLLIN | (select.POLLOUT if unsent else 0))
        if unsent or pgconn.is_busy():
            left = deadline - monotonic()
            if left <= 0 or not readiness.poll(left * 1000):
                session.close()
                raise StoreUnavailable(
                    f"the database did not answer within {seconds:g} s; check its load"
                )
            pgconn.consume_input()
            continue
        result = pgconn.get_result()
        if result is None:
            break
        if result.status == ExecStatus.FATAL_ERROR:
            failed = error_from_result(result)
        rows += [
            tuple(_decoded(result.get_value(row, column)) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
    if failed is not None:
        raise failed
    return rows


def _decoded(value: bytes | None) -> str | None:
    return None if value is None else value.decode()
