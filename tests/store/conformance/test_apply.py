"""Ops are written together and answered in order. A refused op changes nothing."""

import pytest

from duly.core.concurrency_limits import ClaimLimits
from duly.core.states import State
from duly.core.verdict import Finish
from duly.errors import StoreError, StoreUnavailable
from duly.store.ops.operators import Cancel, LimitQueue, PauseQueue, RetriedRun, RetryRun
from duly.store.ops.runs import Accepted, ClaimRuns, Settled, Want
from duly.store.ops.updates import AddLogs, SetProgress
from duly.store.ops.upkeep import Tick, Ticked
from duly.store.refusal import REFUSALS
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    OTHER_WORKER,
    TASKS,
    TIMEOUT,
    UNKNOWN_RUN,
    WORKER,
    at_once,
    claim,
    commit_held_up,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_many,
    enqueue_one,
    key,
    listed_ids,
    order,
    pause,
    pausing,
    register,
    settle_op,
    state_of,
    submitted,
    success,
)
from tests.store.separate_commits import SeparateCommits

pytestmark = pytest.mark.pgbouncer


@pytest.fixture(params=["as it is", "each op separately"])
def store(opened, request):
    """Open a store of each kind, and one that commits the ops of a call separately."""
    return opened.store if request.param == "as it is" else SeparateCommits(opened.store)


def impossible(claim):
    """Build a Settle that the tables themselves refuse, because its end does not exist."""
    return settle_op(claim, "raised", Finish(State.QUEUED))


def test_mixed_ops_are_answered_in_the_order_they_were_given(store, worker):
    running, dead = enqueue_and_claim(store), enqueue_and_fail(store)
    queued, fresh = enqueue_one(store, delay_seconds=60), order(queue="mail")

    answers = store.apply(
        [
            ClaimRuns(WORKER, (Want("mail", LANE, 5),), TASKS),
            Tick(100),
            Cancel(queued, ACTOR),
            Cancel(UNKNOWN_RUN, ACTOR),
            fresh,
            pausing("other"),
            success(running),
            RetryRun(dead, ACTOR, delay=60_000_000),
            SetProgress(running.run_id, 1, 0.5, None),
        ]
    )

    (taken,) = answers[0]
    assert taken.run_id == fresh.run_id
    assert answers[1:5] == [
        Ticked(promoted=0, parked=0, expired=0, next_due_in=60_000_000),
        "cancelled",
        None,
        Accepted(fresh.run_id),
    ]
    assert answers[5:] == [None, Settled.DONE, RetriedRun(done=True, state="queued"), True]


def test_log_lines_and_progress_are_written_before_the_end_of_their_attempt(store, worker):
    held = enqueue_and_claim(store)
    place = (held.run_id, held.claim_number)

    answers = store.apply(
        [success(held), AddLogs(*place, ((1, "info", "done"),)), SetProgress(*place, 1.0, None)]
    )

    assert answers == [Settled.DONE, True, True]
    assert [line.message for line in store.list_logs(held.run_id, 10)] == ["done"]


def test_a_claim_sees_the_place_that_a_settle_of_the_same_call_frees(store, worker):
    store.do(LimitQueue("default", 1, ACTOR))
    enqueue_many(store, 2)
    wanted = ClaimRuns(WORKER, (Want(None, LANE, 5),), TASKS, limits=ClaimLimits({}))
    (held,) = store.do(wanted)

    claims, settled = store.apply([wanted, success(held)])

    assert settled is Settled.DONE
    assert len(claims) == 1


def test_a_call_without_ops_returns_no_answers(store):
    assert store.apply([]) == []


def test_an_op_that_the_tables_refuse_raises_an_error_that_is_not_retried(store, worker):
    found = enqueue_and_claim(store)

    with pytest.raises(StoreError) as caught:
        store.do(impossible(found))

    assert not isinstance(caught.value, StoreUnavailable)
    assert state_of(store, found.run_id) == "running"


def test_a_refused_op_undoes_its_own_writes_and_those_of_later_ops(store, worker, tables):
    found = enqueue_and_claim(store)
    before = tables.everything()

    with pytest.raises(StoreError):
        store.apply(
            [
                order(key="k", tags={"customer": "17"}),
                impossible(found),
                pausing("default"),
                ClaimRuns(WORKER, (Want(None, LANE, 5),), TASKS),
            ]
        )

    assert tables.everything() == before


@pytest.mark.parametrize("text", ["", "x" * 256], ids=["empty", "too long"])
def test_the_tables_refuse_a_key_that_python_did_not_check(store, tables, text):
    before = tables.everything()

    with pytest.raises(StoreError):
        store.do(order(key=key(text)))

    assert tables.everything() == before


def test_a_store_still_works_after_it_refused_an_op(store, worker):
    found = enqueue_and_claim(store)
    with pytest.raises(StoreError):
        store.do(impossible(found))

    assert store.apply([success(found)]) == [Settled.DONE]


def test_a_refused_op_fails_alone_among_callers_who_share_a_commit(store, worker):
    register(store, OTHER_WORKER)
    enqueue_and_claim(store, worker=OTHER_WORKER)
    enqueue_many(store, 7)
    culprit, *others = claim(store)

    with commit_held_up(store, OTHER_WORKER):
        refused = submitted(store, [impossible(culprit)])
        fine = [submitted(store, [success(claim)]) for claim in others]

    assert isinstance(refused.exception(TIMEOUT), StoreError)
    assert not isinstance(refused.exception(), StoreUnavailable)
    assert [future.result(TIMEOUT) for future in fine] == [[Settled.DONE]] * 6
    assert state_of(store, culprit.run_id) == "running"


def test_submitted_ops_are_answered(store):
    op = order()

    answers = submitted(store, [op]).result(TIMEOUT)

    assert answers == [Accepted(op.run_id)]
    assert listed_ids(store) == [op.run_id]


def test_a_submission_that_is_refused_is_answered_with_the_error(store):
    error = submitted(store, [order(key=key(""))]).exception(TIMEOUT)

    assert isinstance(error, StoreError)
    assert listed_ids(store) == []


def test_many_concurrent_callers_get_their_own_answers(store):
    batches = [[order() for _ in range(size)] for size in range(1, 13)]

    answers = at_once(*(lambda batch=batch: store.apply(batch) for batch in batches))

    expected = [[Accepted(op.run_id) for op in batch] for batch in batches]
    assert answers == expected
    assert len(listed_ids(store)) == sum(range(1, 13))


def test_a_tick_sees_the_ops_before_it_in_the_same_call(store, worker):
    pause(store)
    run_id = enqueue_one(store)
    store.do(Tick(10))
    assert claim(store, 1) == []

    store.apply([PauseQueue("default", paused=False, actor=ACTOR), Tick(10)])

    assert [found.run_id for found in claim(store, 1)] == [run_id]


@pytest.mark.parametrize("text", ["one\x00two", "one\ud800two"], ids=["NUL", "surrogate"])
def test_a_list_that_contains_an_invalid_text_is_refused_as_a_whole(store, text):
    register(store)
    held = enqueue_and_claim(store)
    lines = (1, "info", "before"), (2, "info", text)

    with pytest.raises(REFUSALS):
        store.do(AddLogs(held.run_id, held.claim_number, lines))

    assert store.list_logs(held.run_id, 10) == []


def test_log_lines_are_stored_as_they_were_written(store):
    register(store)
    held = enqueue_and_claim(store)
    lines = tuple((at, "info", text) for at, text in enumerate(["", "ü€😀", "\\u0000", '"\t\n'], 1))

    store.do(AddLogs(held.run_id, held.claim_number, lines))

    assert [line.message for line in store.list_logs(held.run_id, 10)] == [
        text for _, _, text in lines
    ]
