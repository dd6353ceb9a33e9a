"""Enqueueing in a deferred transaction of the caller, which SQLite begins without a lock.

PostgreSQL has no such transactions: there a writer waits for rows, never for the whole database.
"""

import sqlite3
from contextlib import closing

import pytest

from duly.store.ops.steps import SendEvent
from tests.store.conformance.verbs import OTHER_TASK, TASK, enqueue_one, key, listed_ids, order
from tests.store.sqlite.verbs import BOTH_JOURNALS

pytestmark = [pytest.mark.stores("sqlite"), BOTH_JOURNALS]


def execute_interleaved(
    connection, dialogue, *, after_first=lambda: None, before=lambda _statement: None
):
    """Execute the statements of a dialogue, and run other code before the first or before each."""
    meanwhile = after_first
    row = None
    try:
        while True:
            statement = dialogue.send(row)
            before(statement)
            row = connection.execute(statement.sql, statement.parameters).fetchone()
            meanwhile()
            meanwhile = lambda: None  # noqa: E731 - used once
    except StopIteration as answer:
        return answer.value


@pytest.fixture
def connection(path):
    """A connection of the caller, in a deferred transaction that has done nothing yet."""
    with closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        yield connection


def test_a_write_between_two_statements_of_an_enqueue_does_not_make_the_enqueue_fail(
    store, connection
):
    dialogue = store.enqueue_on_connection(order(key=key("order 17")), hint=False)

    accepted = execute_interleaved(connection, dialogue, after_first=lambda: enqueue_one(store))
    connection.execute("COMMIT")

    assert accepted.run_id in listed_ids(store)


def test_a_write_between_two_statements_of_an_event_does_not_make_the_event_fail(store, connection):
    dialogue = store.send_on_connection(SendEvent("paid", "null"), hint=False)

    is_new = execute_interleaved(connection, dialogue, after_first=lambda: enqueue_one(store))
    connection.execute("COMMIT")

    assert is_new


def test_an_enqueue_returns_the_run_whose_key_was_taken_under_another_name_in_between(store, path):
    """A connection that commits every statement lets others write between two of its statements."""
    wanted = order(task=TASK, key=key("k")._replace(other_names=(OTHER_TASK,)))
    taken: list[str] = []

    def take(statement) -> None:
        if "INTO main.duly_enqueue" in statement.sql:
            taken.append(enqueue_one(store, task=OTHER_TASK, key="k"))

    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        answer = execute_interleaved(
            connection, store.enqueue_on_connection(wanted, hint=False), before=take
        )

    assert answer == (taken[0], False, False)
    assert store.get_run(wanted.run_id) is None
