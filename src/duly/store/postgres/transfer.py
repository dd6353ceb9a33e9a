"""Writes all rows that another database contains, in one transaction."""

from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import sql

from duly.core.instants import iso
from duly.errors import StoreRefused
from duly.store.postgres.address import Address
from duly.store.postgres.failures import translated
from duly.store.statements import load
from duly.store.transfer import TransferSource, TransferTable

SQL = load("postgres", "move")
_TOLD_EVERY = 1_000


def write(url: str, source: TransferSource, progress: Callable[[int], None]) -> dict[str, int]:
    """Copy all rows into an empty database. Return the number of rows of each table.

    `progress` is called from time to time with the number of rows copied so far.
    """
    address = Address(url)
    counts: dict[str, int] = {}
    try:
        with psycopg.connect(**address.parameters) as connection:
            if connection.execute(SQL["is_used"]).fetchone() != (False,):
                raise StoreRefused(
                    f"{address.shown_url} is not empty, or was used by duly before; move into a "
                    "database without any runs, schedules, keys, locks, dead letters or events"
                )
            for table in source.tables():
                counts[table.name] = _copy(connection, table, sum(counts.values()), progress)
            connection.execute(SQL["set_fence"], {"latest": source.latest_fence()})
    except psycopg.Error as error:
        raise translated(error, address) from error
    return counts


def _copy(
    connection: "psycopg.Connection[tuple[Any, ...]]",
    table: TransferTable,
    before: int,
    progress: Callable[[int], None],
) -> int:
    types = dict(connection.execute(SQL["columns"], {"table": table.name}).fetchall())
    are_instants = [types[name] == "timestamp with time zone" for name in table.columns]
    columns = sql.SQL(", ").join(map(sql.Identifier, table.columns))
    into = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), columns)
    count = 0
    with connection.cursor() as cursor, cursor.copy(into) as copy:
        for row in table.rows:
            copy.write_row(
                [
                    iso(value) if is_instant else value
                    for value, is_instant in zip(row, are_instants, strict=True)
                ]
            )
            count += 1
            if count % _TOLD_EVERY == 0:
                progress(before + count)
    progress(before + count)
    return count
