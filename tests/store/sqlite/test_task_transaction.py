"""Statements of a task, and its timer, that end its transaction on SQLite."""

import sqlite3
import threading

import pytest

from duly.errors import TransactionEnded, TransactionTooLong
from duly.store.sqlite.task_connection import SqliteTaskConnection
from tests.servers.processes import wait_until
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


def test_a_task_that_ends_during_the_rollback_of_its_timer_does_not_disturb_it(store, monkeypatch):
    end = SqliteTaskConnection.end

    def end_after_the_task(connection):
        task = threading.Thread(target=connection.take_back)
        task.start()
        task.join(0.1)  # It may have to wait for the end.
        end(connection)

    monkeypatch.setattr(SqliteTaskConnection, "end", end_after_the_task)
    section = store.task_transaction(0.05)
    connection = section.connection
    wait_until(store.can_write_now, seconds=20.0, what="the rollback")

    with pytest.raises(TransactionTooLong):
        _ = section.connection

    register(store)  # Another connection writes.
    assert isinstance(section.rollback(), TransactionTooLong)
    with pytest.raises(TransactionTooLong):
        connection.execute("SELECT 1")


@pytest.mark.parametrize("error", [sqlite3.OperationalError, SystemError])
def test_a_rollback_that_the_driver_fails_is_repeated(store, entries, monkeypatch, error):
    failures = [error("interrupted")] * 3
    execute = SqliteTaskConnection.execute

    def fail_first(connection, sql, *parameters):
        if sql == "ROLLBACK" and failures:
            raise failures.pop()
        return execute(connection, sql, *parameters)

    monkeypatch.setattr(SqliteTaskConnection, "execute", fail_first)
    section = store.task_transaction()
    section.connection.execute("INSERT INTO entries VALUES (1)")

    section.rollback()

    assert failures == []
    register(store)  # Another connection writes.
    assert entries() == []
