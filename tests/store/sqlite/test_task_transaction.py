"""Statements of a task that end its transaction on SQLite."""

import sqlite3

import pytest

from duly.errors import TransactionEnded
from tests.store.conformance.verbs import enqueue_and_claim, register, state_of, success
from tests.store.sqlite.verbs import BOTH_JOURNALS

pytestmark = BOTH_JOURNALS

CONFLICT = "INSERT OR ROLLBACK INTO entries VALUES (1)"
TRIGGER = "INSERT INTO refusing VALUES (1)"


@pytest.fixture
def entries(tables):
    """A table of the application's, and one whose trigger rolls back."""
    tables.execute("CREATE TABLE entries (number integer UNIQUE)")
    tables.execute("CREATE TABLE refusing (number integer)")
    tables.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON refusing BEGIN SELECT RAISE(ROLLBACK, 'no'); END"
    )
    return lambda: [number for (number,) in tables.rows("SELECT number FROM entries")]


@pytest.mark.parametrize("statement", [CONFLICT, TRIGGER], ids=["conflict", "trigger"])
def test_no_statement_is_committed_after_a_statement_has_rolled_back(store, entries, statement):
    section = store.task_transaction()
    section.connection.execute("INSERT INTO entries VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        section.connection.execute(statement)

    with pytest.raises(TransactionEnded, match="rolled back this run's transaction"):
        section.connection.execute("INSERT INTO entries VALUES (2)")

    section.rollback()
    assert entries() == []


@pytest.mark.parametrize("statement", [CONFLICT, TRIGGER], ids=["conflict", "trigger"])
def test_a_run_whose_transaction_a_statement_rolled_back_does_not_succeed(
    store, entries, statement
):
    register(store)
    held = enqueue_and_claim(store)
    section = store.task_transaction()
    section.connection.execute("INSERT INTO entries VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        section.connection.execute(statement)

    with pytest.raises(TransactionEnded, match="nothing was committed"):
        section.settle_and_commit(success(held))

    assert state_of(store, held.run_id) == "running"
    assert entries() == []
