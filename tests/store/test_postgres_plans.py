"""No statistics, however wrong, make a statement read more than the rows that it handles."""

import os
from collections.abc import Iterator
from contextlib import closing

import psycopg
import pytest

from duly.store.store_factory import open_store
from tests.servers.kinds import POSTGRES_KINDS
from tests.store.postgres_plans import BATCH, PAGES, Server, fill, forge
from tests.store.postgres_statements import CASES, IN_BORROWED_SESSIONS, IN_CALLERS_SESSIONS, Case

pytestmark = [
    pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS),
    pytest.mark.scaled,
    pytest.mark.timeout(300),
]

IS_SCALED = float(os.environ.get("DULY_TEST_SCALE", "1")) > 1
ROWS = 500_000 if IS_SCALED else 3_000
CONSTANT = 60
PER_ROW = 20
"""Blocks. Rows have indexes: what was measured is up to 18 for each, and 24 for a lone one."""

STATISTICS = {
    "true": None,
    "never taken": ("0", -1),
    "of an emptied table": (PAGES, 0),
    "of a table with one row left": (PAGES, 1),
    "of one page": ("1", 10),
}
"""Pages, as SQL, and rows."""


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """A session on a database that has the tables and no rows."""
    open_store(url).close()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        # A statement that reads too much is cut off, and so found, within bounds.
        connection.execute("SET statement_timeout = '5s'")
        yield Server(connection)


def test_no_statistics_make_a_statement_read_more_than_its_rows(server):
    fill(server.connection, ROWS)

    dear = dear_under_any_statistics(server)
    server.connection.execute("ANALYZE")
    dear_with_known_columns = dear_under_any_statistics(server)

    assert dear == []
    assert dear_with_known_columns == []


def test_a_plan_made_for_one_page_serves_a_table_that_has_grown(server):
    fill(server.connection, BATCH)
    server.connection.execute("ANALYZE")
    with server.undone():
        for case in CASES:
            server.use(case.settings)
            server.blocks(case.sql, case.place)
    fill(server.connection, ROWS, beyond=BATCH)

    with server.undone():
        dear = [words for case in CASES for words in too_dear(server, case)]

    assert dear == []


def test_an_enqueue_in_a_callers_session_reads_as_little_when_its_tables_have_grown(server):
    (case,) = (case for case in CASES if case.name == "enqueue.enqueue_in_callers_transaction")
    fill(server.connection, BATCH)
    server.connection.execute("ANALYZE")
    with server.undone():
        # Often enough for the function to keep its plans.
        few = [server.blocks(case.sql, case.place) for _ in range(10)][-1]
    fill(server.connection, ROWS, beyond=BATCH)

    with server.undone():
        many = server.blocks(case.sql, case.place)

    assert many <= few + PER_ROW


def dear_under_any_statistics(server: Server) -> list[str]:
    """Return which statements read too much, and under which statistics."""
    return [
        f"statistics {name}: {words}"
        for name, forged in STATISTICS.items()
        for words in dear_under(server, forged)
    ]


def dear_under(server: Server, forged: tuple[str, int] | None) -> list[str]:
    """Return which statements read too much under these statistics."""
    with server.undone():
        if forged is not None:
            forge(server.connection, pages=forged[0], rows=forged[1])
        cases = [*CASES, *IN_CALLERS_SESSIONS, *IN_BORROWED_SESSIONS]
        return [words for case in cases for words in too_dear(server, case)]


def too_dear(server: Server, case: Case) -> list[str]:
    """Return what to say of a statement that reads more blocks than it may."""
    server.use(case.settings)
    blocks = server.blocks(case.sql, case.place)
    bound = CONSTANT + PER_ROW * case.rows
    if blocks <= bound:
        return []
    plan = server.plan(case.sql, case.place)
    whose = "ours" if case.settings else "the server's"
    return [f"{case.name} reads {blocks} blocks, not {bound}, settings {whose}:\n{plan}"]
