"""A run's writes in its own transaction commit with its completion, or not at all."""

import pytest

from duly.core.states import State
from duly.core.verdict import Finish
from duly.store.ops.runs import Settled
from tests.store.conformance.verbs import (
    OTHER_WORKER,
    another_try,
    cancel,
    claim_one,
    enqueue_and_claim,
    enqueue_one,
    fail,
    hand_back,
    outcomes_of,
    recover,
    register,
    run_of,
    settle_op,
    state_of,
    succeed,
    success,
    unstarted,
)

pytestmark = pytest.mark.pgbouncer


@pytest.fixture
def ledger(tables):
    """A table of the application in the same database."""
    tables.execute("DROP TABLE IF EXISTS ledger")
    tables.execute("CREATE TABLE ledger (entry text NOT NULL)")
    yield lambda: [entry for (entry,) in tables.rows("SELECT entry FROM ledger")]
    tables.execute("DROP TABLE ledger")


def write_entry(section, text="paid"):
    section.connection.execute(f"INSERT INTO ledger VALUES ('{text}')")  # noqa: S608 - the text is ours


def test_the_writes_of_a_run_commit_with_its_success(store, worker, ledger):
    found = enqueue_and_claim(store, key="k")
    section = store.task_transaction()
    write_entry(section)
    before = ledger()

    answer = section.settle_and_commit(success(found, '"done"'))

    assert before == []
    assert answer is Settled.DONE
    assert ledger() == ["paid"]
    assert run_of(store, found.run_id).result == '"done"'
    assert outcomes_of(store, found.run_id) == [(1, "returned")]


@pytest.mark.parametrize("taken_over", [False, True], ids=["recovered", "taken over"])
def test_the_writes_of_a_run_that_lost_its_claim_are_undone(store, worker, ledger, taken_over):
    slow = enqueue_and_claim(store)
    recover(store, judge=unstarted)
    if taken_over:
        register(store, OTHER_WORKER)
        claim_one(store, worker=OTHER_WORKER)
    state = state_of(store, slow.run_id)
    section = store.task_transaction()
    write_entry(section)

    answer = section.settle_and_commit(success(slow))

    assert answer is Settled.CLAIM_LOST
    assert ledger() == []
    assert state_of(store, slow.run_id) == state


def test_the_writes_of_a_run_that_failed_can_be_undone(store, worker, ledger):
    found = enqueue_and_claim(store)
    section = store.task_transaction()
    write_entry(section)

    section.rollback()

    assert ledger() == []
    assert state_of(store, found.run_id) == "running"
    assert fail(store, found) is Settled.DONE


def test_a_cancel_request_undoes_the_writes_of_an_attempt_that_would_be_retried(
    store, worker, ledger
):
    found = enqueue_and_claim(store)
    cancel(store, found.run_id)
    section = store.task_transaction()
    write_entry(section)

    answer = section.settle_and_commit(another_try(found))

    assert answer is Settled.CANCEL_REQUESTED
    assert ledger() == []
    assert state_of(store, found.run_id) == "running"


def test_a_retry_may_keep_the_writes_of_its_attempt(store, worker, ledger):
    found = enqueue_and_claim(store)
    section = store.task_transaction()
    write_entry(section)

    assert section.settle_and_commit(another_try(found)) is Settled.DONE
    assert ledger() == ["paid"]
    assert claim_one(store).claim_number == 2


def test_two_attempts_of_one_run_leave_one_entry(store, worker, ledger):
    first = enqueue_and_claim(store)
    hand_back(store, first)
    second = claim_one(store)
    quick, slow = store.task_transaction(), store.task_transaction()
    write_entry(quick, "quick")
    assert quick.settle_and_commit(success(second)) is Settled.DONE

    write_entry(slow, "slow")
    answer = slow.settle_and_commit(success(first))

    assert answer is Settled.CLAIM_LOST
    assert ledger() == ["quick"]


def test_a_settle_that_the_tables_refuse_undoes_the_whole_transaction(store, worker, ledger):
    found = enqueue_and_claim(store)
    section = store.task_transaction()
    write_entry(section)

    with pytest.raises(Exception, match=r"(?i)check"):
        section.settle_and_commit(settle_op(found, "raised", Finish(State.QUEUED)))

    assert ledger() == []
    assert succeed(store, found) is Settled.DONE


def test_an_unused_task_transaction_delays_no_other_writer(store, worker):
    section = store.task_transaction()

    assert enqueue_one(store)

    section.rollback()


def test_a_transaction_without_a_run_commits_by_itself_or_not_at_all(store, ledger):
    section = store.task_transaction()
    write_entry(section, "moved")
    section.commit()
    undone = store.task_transaction()
    write_entry(undone, "undone")
    undone.rollback()

    assert ledger() == ["moved"]


def test_the_columns_of_a_table_are_returned_and_a_missing_table_has_none(store, ledger):
    assert store.columns_of("ledger") == {"entry"}
    assert store.columns_of("no_such_table") == frozenset()
