"""No statistics, however wrong, make a statement read more than the rows that it handles."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

import psycopg
import pytest

from duly.store.store_factory import open_store
from tests.servers.kinds import POSTGRES_KINDS
from tests.store.postgres.plans import BATCH, PAGES, Server, fill, forge, smallest, vacuum
from tests.store.postgres.statements import (
    CASES,
    IN_BODIES_SESSIONS,
    IN_BORROWED_SESSIONS,
    IN_CALLERS_SESSIONS,
    Case,
)

pytestmark = [
    pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS),
    pytest.mark.scaled,
    pytest.mark.timeout(300),
]

IS_SCALED = float(os.environ.get("DULY_TEST_SCALE", "1")) > 1
ROWS = 500_000 if IS_SCALED else 30_000
FILLFACTOR = 100 if IS_SCALED else 20
"""With fewer rows, or more in each block, a scan of a table could stay below the bound."""
CONSTANT = 60
PER_ROW = 20
"""Blocks. Rows have indexes: the measured maximum is 18 for each row, and 24 for a single row."""

STATISTICS = {
    "true": None,
    "never taken": ("0", -1),
    "of an emptied table": (PAGES, 0),
    "of a table with one row left": (PAGES, 1),
    "of one page": ("1", 10),
}
"""Pages, as SQL, and rows."""
PREPARED = [CASES, IN_CALLERS_SESSIONS]
"""The statements of each kind of session that keeps plans."""
UNPREPARED = [IN_BODIES_SESSIONS, IN_BORROWED_SESSIONS]
"""The statements of each kind of session that plans every execution."""
TIMES = 10
"""After its sixth run at the latest, the server keeps the plan of a prepared statement."""


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """A session on a database that has the tables and no rows."""
    open_store(url).close()
    with session(url) as server:
        yield server


def test_no_statistics_make_a_statement_read_more_than_its_rows(server):
    fill(server.connection, ROWS, fillfactor=FILLFACTOR)
    assert smallest(server.connection) > CONSTANT + PER_ROW * 2 * BATCH, "no scan goes unseen"

    excess = find_excess_under_any_statistics(server)
    server.connection.execute("ANALYZE")
    excess_with_known_columns = find_excess_under_any_statistics(server)

    assert (excess, excess_with_known_columns) == ([], [])


def test_a_plan_made_for_one_page_is_good_for_a_table_that_has_grown(server, url):
    fill(server.connection, BATCH, fillfactor=FILLFACTOR)
    server.connection.execute("ANALYZE")
    with ExitStack() as stack:
        sessions = [(stack.enter_context(session(url)), cases) for cases in PREPARED]
        for other, cases in sessions:
            keep_plans(other, cases)
        fill(server.connection, ROWS, beyond=BATCH)
        sessions.append((stack.enter_context(session(url)), IN_BODIES_SESSIONS))

        excess = [words for other, cases in sessions for words in find_all_excess(other, cases)]

    assert excess == []


def test_an_enqueue_in_a_callers_session_reads_as_little_after_its_tables_have_grown(server):
    (case,) = (case for case in CASES if case.name == "enqueue.enqueue_in_callers_transaction")
    fill(server.connection, BATCH, fillfactor=FILLFACTOR)
    server.connection.execute("ANALYZE")
    with server.undone():
        # Often enough for the function to keep its plans.
        few = [server.blocks(case.sql, case.place) for _ in range(TIMES)][-1]
    fill(server.connection, ROWS, beyond=BATCH)

    with server.undone():
        many = server.blocks(case.sql, case.place)

    assert many <= few + PER_ROW


@contextmanager
def session(url: str) -> Iterator[Server]:
    """Open another session on the database."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield Server(connection)


def keep_plans(server: Server, cases: Sequence[Case]) -> None:
    """Run the statements often enough for the server to keep their plans."""
    with server.undone():
        for case in cases:
            server.use(case.settings)
            is_kept_at_once = "plan_cache_mode" in case.settings
            for _ in range(1 if is_kept_at_once else TIMES):
                server.blocks(case.sql, case.place)


def find_excess_under_any_statistics(server: Server) -> list[str]:
    """Return the statements that read too much, with the statistics under which they do."""
    excess = []
    for name, forged in STATISTICS.items():
        # The rollback left dead rows, which would be counted with the next statements.
        vacuum(server.connection)
        excess += [f"statistics {name}: {words}" for words in find_excess_under(server, forged)]
    return excess


def find_excess_under(server: Server, forged: tuple[str, int] | None) -> list[str]:
    """Return the statements that read too much under these statistics."""
    cases = [case for cases in (*PREPARED, *UNPREPARED) for case in cases]
    with server.undone():
        if forged is not None:
            forge(server.connection, pages=forged[0], rows=forged[1])
        return [words for case in cases for words in find_excess(server, case)]


def find_all_excess(server: Server, cases: Sequence[Case]) -> list[str]:
    """Return the statements that read too much in this session."""
    with server.undone():
        return [words for case in cases for words in find_excess(server, case)]


def find_excess(server: Server, case: Case) -> list[str]:
    """Return a message about a statement that reads more blocks than it may."""
    server.use(case.settings)
    blocks = server.blocks(case.sql, case.place)
    bound = CONSTANT + PER_ROW * case.rows
    if blocks <= bound:
        return []
    plan = server.plan(case.sql, case.place)
    whose = "ours" if case.settings else "the server's"
    return [f"{case.name} reads {blocks} blocks, not {bound}, settings {whose}:\n{plan}"]
