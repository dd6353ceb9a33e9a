"""Runs wait until they are due, and are cancelled if they expire before they start."""

import pytest

from duly.store.ops.runs import Settled
from duly.store.ops.upkeep import Ticked
from tests.store.conformance.verbs import (
    SECOND,
    accept,
    claim,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    hand_back,
    key,
    listed_ids,
    pause,
    retry_later,
    run_of,
    state_of,
    succeed,
    tick,
)


def test_a_delayed_run_is_not_claimed_before_it_is_due(store, worker, clock):
    run_id = enqueue_one(store, delay_seconds=10)

    clock.advance(9.999999)

    assert tick(store) == Ticked(promoted=0, parked=0, expired=0, next_due_in=1)
    assert claim(store) == []
    assert run_of(store, run_id).due_at == clock.now() + 1


def test_a_tick_makes_a_due_run_claimable(store, worker, clock):
    run_id = enqueue_one(store, delay_seconds=10)
    clock.advance(10)

    ticked = tick(store)

    assert ticked == Ticked(promoted=1, parked=0, expired=0, next_due_in=None)
    assert claimed_ids(store) == [run_id]


def test_a_run_may_be_enqueued_for_an_instant(store, worker, clock):
    run_id = enqueue_one(store, at=clock.now() + 5 * SECOND, delay_seconds=99)

    assert tick(store).next_due_in == 5 * SECOND
    clock.advance(5)
    tick(store)
    assert claimed_ids(store) == [run_id]


def test_a_run_for_a_past_instant_is_due_now(store, worker, clock):
    run_id = enqueue_one(store, at=clock.now() - 5 * SECOND)

    assert claimed_ids(store) == [run_id]


def test_a_tick_returns_the_time_until_the_next_run_is_due(store, worker, clock):
    enqueue_one(store, delay_seconds=60)
    enqueue_one(store, delay_seconds=20)
    clock.advance(5)

    assert tick(store).next_due_in == 15 * SECOND


def test_a_tick_without_waiting_runs_returns_no_time(store, worker):
    enqueue_one(store)

    assert tick(store) == Ticked(promoted=0, parked=0, expired=0, next_due_in=None)


def test_a_tick_promotes_no_more_runs_than_its_limit_and_requests_another_tick(
    store, worker, clock
):
    enqueue_many(store, 5, delay_seconds=10)
    clock.advance(11)

    first, second, third = tick(store, 2), tick(store, 2), tick(store, 2)

    assert [first.promoted, second.promoted, third.promoted] == [2, 2, 1]
    assert first.next_due_in <= 0
    assert third.next_due_in is None


def test_runs_due_at_one_instant_are_promoted_once_each(store, worker, clock):
    ids = enqueue_many(store, 300, delay_seconds=10)
    clock.advance(10)

    while tick(store, 7).promoted:
        pass

    assert sorted(listed_ids(store)) == ids
    assert sorted(claimed_ids(store)) == ids


def test_promoted_runs_are_ordered_by_priority_and_due_time(store, worker, clock):
    late = enqueue_one(store, delay_seconds=20)
    early = enqueue_one(store, delay_seconds=10)
    urgent = enqueue_one(store, delay_seconds=20, priority=1)
    clock.advance(20)
    tick(store)

    assert claimed_ids(store) == [urgent, early, late]


def test_a_retry_waits_for_its_time(store, worker, clock):
    found = enqueue_and_claim(store)
    assert retry_later(store, found, 30.0) is Settled.DONE

    clock.advance(29)
    tick(store)
    before = claim(store)
    clock.advance(1)
    tick(store)

    assert before == []
    assert claimed_ids(store) == [found.run_id]


def test_an_expired_run_is_not_claimed_even_before_a_tick_ends_it(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10)
    clock.advance(10)

    assert claim(store) == []
    assert state_of(store, run_id) == "queued"


def test_a_run_is_claimed_until_it_expires(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10)
    clock.advance(9)

    assert tick(store).expired == 0
    assert claimed_ids(store) == [run_id]


def test_a_tick_ends_an_expired_run_as_cancelled(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10)
    clock.advance(10)

    ticked = tick(store)

    run = run_of(store, run_id)
    assert ticked.expired == 1
    assert (run.state, run.cause, run.finished_at) == ("cancelled", "expired", clock.now())
    assert (run.worker_id, run.claimed_at) == (None, None)
    assert store.list_attempts(run_id) == []


def test_a_waiting_run_expires_too(store, worker, clock):
    run_id = enqueue_one(store, delay_seconds=60, expires_seconds=10)
    clock.advance(10)

    tick(store)

    assert state_of(store, run_id) == "cancelled"


def test_a_parked_run_expires_too(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10)
    pause(store)
    tick(store)
    clock.advance(10)

    tick(store)

    assert state_of(store, run_id) == "cancelled"


def test_a_running_run_does_not_expire(store, worker, clock):
    found = enqueue_and_claim(store, expires_seconds=10)
    clock.advance(11)

    assert tick(store).expired == 0
    assert succeed(store, found) is Settled.DONE


@pytest.mark.parametrize("after", [0.0, 5.0])
def test_a_run_that_has_started_no_longer_expires(store, worker, clock, after):
    found = enqueue_and_claim(store, expires_seconds=10)
    assert retry_later(store, found, after) is Settled.DONE
    clock.advance(11)

    assert tick(store).expired == 0
    assert claimed_ids(store) == [found.run_id]


def test_a_run_that_is_handed_back_before_its_start_still_expires(store, worker, clock):
    found = enqueue_and_claim(store, expires_seconds=10)
    assert hand_back(store, found) is Settled.DONE
    clock.advance(11)

    assert tick(store).expired == 1
    assert state_of(store, found.run_id) == "cancelled"


def test_an_expired_run_keeps_its_key_for_the_time_to_live(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10, key=key("k", ttl_seconds=100))
    clock.advance(10)
    tick(store)

    clock.advance(99)
    kept = accept(store, key="k")
    clock.advance(1)
    free = accept(store, key="k")

    assert kept == (run_id, False, False)
    assert free.new


def test_a_tick_ends_no_more_expired_runs_than_its_limit(store, worker, clock):
    ids = enqueue_many(store, 5, expires_seconds=10)
    clock.advance(10)

    counts = [tick(store, 2).expired for _ in range(4)]

    assert counts == [2, 2, 1, 0]
    assert set(store.get_states(ids).values()) == {"cancelled"}
