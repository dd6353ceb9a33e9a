"""A table of the application's that bodies write to through their own transaction."""

from duly import current
from tests.store.conformance.stores import Tables


def write(table: str = "ledger") -> None:
    """Write one row through the run's own transaction."""
    context = current()
    row = "'" + context.run_id + "', " + str(context.fence)
    if table == "once":
        row = "1"
    context.connection.execute(f"INSERT INTO {table} VALUES ({row})")  # noqa: S608 - our own words


def rows(tables: Tables) -> list[tuple[str, int]]:
    """Return what the ledger holds."""
    return tables.rows("SELECT run, fence FROM ledger ORDER BY fence")
