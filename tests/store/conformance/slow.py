"""Makes a table so slow to read that no test could wait for the read."""

from tests.store.conformance.stores import is_sqlite, opened_tables

_SLOW = {
    True: """
    CREATE VIEW duly_acts AS
    WITH RECURSIVE endless(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM endless LIMIT 1000000000)
    SELECT max(i) AS rowid, 0 AS at, '' AS actor, '' AS act, '' AS subject, '' AS reason
      FROM endless
    """,
    False: """
    CREATE VIEW duly_acts AS
    SELECT kept.* FROM (SELECT pg_sleep(600)) AS _ LEFT JOIN kept ON true
    """,
}


def slow_down_acts(url: str) -> None:
    """Let every read of the operator actions take minutes."""
    with opened_tables(url) as tables:
        tables.execute("ALTER TABLE duly_acts RENAME TO kept")
        tables.execute(_SLOW[is_sqlite(url)])


def restore_acts(url: str) -> None:
    """Let the operator actions be read at normal speed again."""
    with opened_tables(url) as tables:
        tables.execute("DROP VIEW duly_acts")
        tables.execute("ALTER TABLE kept RENAME TO duly_acts")
