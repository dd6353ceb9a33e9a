"""A cancel is a request: it ends a queued run at once, and does not change a final run.

The worker of a running run is notified of the request.
"""

import pytest

from duly.store.ops.runs import Settled
from tests.store.conformance.verbs import (
    ACTOR,
    OTHER_WORKER,
    UNKNOWN_RUN,
    WORKER,
    cancel,
    claim,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    pause,
    recover,
    register,
    retry_later,
    retry_now,
    run_of,
    state_of,
    succeed,
    tick,
    unstarted,
)


def ready(store):
    return enqueue_one(store)


def delayed(store):
    return enqueue_one(store, delay_seconds=60)


def parked(store):
    run_id = enqueue_one(store)
    pause(store)
    tick(store)
    return run_id


def waiting_for_a_retry(store):
    found = enqueue_and_claim(store)
    retry_later(store, found, 60.0)
    return found.run_id


@pytest.mark.parametrize(
    "put", [ready, delayed, parked, waiting_for_a_retry], ids=lambda f: f.__name__
)
def test_a_queued_run_is_cancelled_at_once(store, worker, clock, put):
    run_id = put(store)
    clock.advance(1000)

    answer = cancel(store, run_id, "not wanted any more")

    run = run_of(store, run_id)
    assert answer == "cancelled"
    assert (run.state, run.cause, run.finished_at) == ("cancelled", "requested", clock.now())
    assert run.error == "not wanted any more"
    tick(store)
    assert claim(store) == []


def test_the_cancel_of_a_running_run_is_recorded_as_a_request(store, worker):
    found = enqueue_and_claim(store)

    answer = cancel(store, found.run_id)

    run = run_of(store, found.run_id)
    assert answer == "requested"
    assert (run.state, run.cancel_requested, run.claim_number) == ("running", True, 1)


def test_a_worker_learns_of_the_requests_for_its_own_runs(store, worker):
    register(store, OTHER_WORKER)
    mine = enqueue_and_claim(store)
    theirs = enqueue_and_claim(store, worker=OTHER_WORKER)
    enqueue_and_claim(store)
    cancel(store, mine.run_id)
    cancel(store, theirs.run_id)

    assert store.list_cancel_requests(WORKER) == [mine.run_id]


def test_a_settled_run_is_no_longer_a_request(store, worker):
    found = enqueue_and_claim(store)
    cancel(store, found.run_id)

    succeed(store, found)

    assert store.list_cancel_requests(WORKER) == []


@pytest.mark.parametrize(
    ("put", "state"),
    [(enqueue_and_succeed, "succeeded"), (enqueue_and_fail, "failed")],
    ids=["succeeded", "failed"],
)
def test_a_final_run_stays_as_it_is(store, worker, tables, put, state):
    run_id = put(store)
    before = tables.everything()

    assert cancel(store, run_id) == state
    assert tables.everything() == before


def test_cancelling_twice_returns_cancelled_and_records_it_once(store):
    run_id = enqueue_one(store)

    assert [cancel(store, run_id), cancel(store, run_id)] == ["cancelled", "cancelled"]
    assert len(store.list_audit_entries(run_id, 10)) == 1


def test_the_cancel_of_an_unknown_run_writes_nothing(store, tables):
    before = tables.everything()

    assert cancel(store, UNKNOWN_RUN) is None
    assert tables.everything() == before


def test_the_actor_of_a_cancel_is_recorded(store, worker, clock):
    run_id = enqueue_one(store)
    clock.advance(5)

    cancel(store, run_id, "a mistake")

    (act,) = store.list_audit_entries(run_id, 10)
    assert (act.act, act.actor, act.subject) == ("cancel", ACTOR, run_id)
    assert (act.at, act.reason) == (clock.now(), "a mistake")


def test_a_request_applies_only_to_the_attempt_that_was_running(store, worker):
    found = enqueue_and_claim(store)
    retry_now(store, found)

    cancel(store, found.run_id)

    assert state_of(store, found.run_id) == "cancelled"
    assert claim(store) == []


def test_a_cancelled_run_that_is_handed_back_does_not_run_again(store, worker):
    found = enqueue_and_claim(store)
    cancel(store, found.run_id)
    recover(store, judge=unstarted)

    assert run_of(store, found.run_id).cause == "requested"
    assert succeed(store, found) is Settled.CLAIM_LOST
