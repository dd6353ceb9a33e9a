"""The connection of a task's transaction can be used during the transaction only."""

import threading

import pytest

from duly.errors import BadOption, TransactionEnded
from duly.store.ops.runs import Settled
from tests.store.conformance.verbs import enqueue_and_claim, state_of, success

pytestmark = pytest.mark.usefixtures("worker")


@pytest.mark.parametrize("act", ["commit", "rollback", "close"])
def test_a_call_that_ends_the_transaction_is_refused_and_the_transaction_continues(store, act):
    held = enqueue_and_claim(store)
    section = store.task_transaction()

    with pytest.raises(BadOption, match="ends with its run"):
        getattr(section.connection, act)()

    assert section.connection.execute("SELECT 1").fetchone() == (1,)
    assert section.settle_and_commit(success(held)) is Settled.DONE


@pytest.mark.parametrize("text", ["COMMIT", "-- so\n rollback", "/* */ End", "BEGIN"])
def test_a_statement_that_ends_the_transaction_is_refused(store, text):
    held = enqueue_and_claim(store)
    section = store.task_transaction()

    with pytest.raises(BadOption, match="raise an exception to undo"):
        section.connection.execute(text)
    section.connection.execute("SAVEPOINT one")
    section.connection.execute("ROLLBACK TO SAVEPOINT one")

    assert section.settle_and_commit(success(held)) is Settled.DONE


@pytest.mark.parametrize("end", ["committed", "undone"])
def test_the_connection_and_its_cursors_are_unusable_after_the_transaction(store, end):
    held = enqueue_and_claim(store)
    section = store.task_transaction()
    connection = section.connection
    cursor = connection.cursor()
    cursor.execute("SELECT 1")
    found = []

    if end == "committed":
        section.settle_and_commit(success(held))
    else:
        section.rollback()

    def use_it_all() -> None:
        acts = (connection.cursor, cursor.fetchone, cursor.fetchall, lambda: next(iter(cursor)))
        asks = (lambda: connection.execute("SELECT 2"), lambda: cursor.execute("SELECT 2"))
        for act in (*acts, *asks):
            with pytest.raises(TransactionEnded, match="in every task"):
                act()
            found.append(act)

    use_it_all()
    late = threading.Thread(target=use_it_all)
    late.start()
    late.join()
    assert len(found) == 12


def test_a_leaked_connection_cannot_write_in_the_next_transaction(store):
    first, second = enqueue_and_claim(store), enqueue_and_claim(store)
    section = store.task_transaction()
    leaked = section.connection
    section.settle_and_commit(success(first))
    later = store.task_transaction()
    assert later.connection.execute("SELECT 1").fetchone() == (1,)

    with pytest.raises(TransactionEnded):
        leaked.execute("SELECT 1")

    assert later.settle_and_commit(success(second)) is Settled.DONE
    assert state_of(store, second.run_id) == "succeeded"
