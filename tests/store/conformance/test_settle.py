"""An attempt is ended once, by the claim that holds it. A lost claim writes nothing."""

import pytest

from duly.core.outcome import ErrorText
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.runs import Settled
from tests.store.conformance.verbs import (
    BOOM,
    OTHER_WORKER,
    SECOND,
    WORKER,
    another_try,
    cancel,
    claim,
    claim_one,
    crashed,
    enqueue_and_claim,
    enqueue_many,
    fail,
    failure,
    hand_back,
    hand_back_op,
    key,
    outcomes_of,
    recover,
    redrive,
    register,
    retry_later,
    retry_now,
    run_of,
    settle,
    settle_op,
    state_of,
    succeed,
    success,
    tick,
    unstarted,
)

pytestmark = pytest.mark.pgbouncer

LATE_WORDS = [success, failure, another_try, hand_back_op]


def test_a_success_stores_the_run_as_ended_with_its_result(store, worker, clock):
    found = enqueue_and_claim(store, tags={"customer": "17"}, key="k")
    clock.advance(3)

    answer = settle(store, success(found, '{"sent":true}')._replace(elapsed=2 * SECOND))

    run = run_of(store, found.run_id)
    assert answer is Settled.DONE
    assert (run.state, run.cause, run.result) == ("succeeded", None, '{"sent":true}')
    assert (run.finished_at, run.claimed_at) == (clock.now(), clock.now() - 2 * SECOND)
    assert (run.worker_id, run.claim_number, run.key) == (WORKER, 1, "k")
    assert (run.error, run.traceback, run.fingerprint) == (None, None, None)
    assert run.tags is not None
    assert run.arguments == found.arguments


def test_a_failure_stores_its_cause_and_error(store, worker):
    found = enqueue_and_claim(store)

    fail(store, found)

    run = run_of(store, found.run_id)
    assert (run.state, run.cause, run.error) == ("failed", "raised", "ValueError: boom")
    assert (run.traceback, run.fingerprint) == ("Traceback: boom", "boom-print")


@pytest.mark.parametrize(
    ("outcome", "verdict"),
    [
        ("lost", Finish(State.INTERRUPTED, "crashed")),
        ("timed_out", Finish(State.INTERRUPTED, "timed_out")),
        ("cancelled", Finish(State.CANCELLED, "discarded")),
        ("raised", Finish(State.FAILED, "undecodable")),
    ],
)
def test_a_run_ends_with_the_state_and_cause_of_the_verdict(store, worker, outcome, verdict):
    found = enqueue_and_claim(store)

    assert settle(store, settle_op(found, outcome, verdict)) is Settled.DONE

    run = run_of(store, found.run_id)
    assert (run.state, run.cause) == (verdict.state, verdict.cause)
    assert outcomes_of(store, found.run_id) == [(1, outcome)]
    assert claim(store) == []


def test_the_record_of_an_attempt_names_its_worker_its_outcome_and_its_times(store, worker, clock):
    found = enqueue_and_claim(store)
    clock.advance(5)

    settle(store, another_try(found)._replace(elapsed=4 * SECOND))

    (attempt,) = store.list_attempts(found.run_id)
    assert (attempt.run_id, attempt.claim_number, attempt.generation) == (found.run_id, 1, 1)
    assert (attempt.attempt, attempt.outcome, attempt.worker_id) == (1, "raised", WORKER)
    assert attempt.started_at == clock.now() - 4 * SECOND
    assert attempt.finished_at == clock.now()
    assert (attempt.error, attempt.traceback) == ("ValueError: boom", "Traceback: boom")


def test_a_run_retried_at_once_is_ready_with_its_counts(store, worker):
    found = enqueue_and_claim(store)
    again = Requeue(0.0, attempt=2, retries_used=1, crashes=2, lane="process")

    answer = settle(store, settle_op(found, "raised", again))

    run = run_of(store, found.run_id)
    assert answer is Settled.DONE
    assert (run.state, run.worker_id, run.claimed_at) == ("queued", None, None)
    assert (run.attempt, run.retries_used, run.crashes, run.lane) == (2, 1, 2, "process")
    assert (run.claim_number, run.due_at) == (1, found.due_at)
    second = claim_one(store, lane="process")
    assert (second.claim_number, second.attempt, second.retries_used) == (2, 2, 1)
    assert second.crashes == 2


def test_a_run_retried_later_waits_with_its_counts(store, worker, clock):
    found = enqueue_and_claim(store, key="k", tags={"customer": "17"}, priority=3)

    answer = retry_later(store, found, 1.5)

    run = run_of(store, found.run_id)
    assert answer is Settled.DONE
    assert (run.state, run.due_at) == ("queued", clock.now() + 1_500_000)
    assert (run.attempt, run.retries_used, run.claim_number) == (2, 1, 1)
    assert (run.key, run.priority, run.arguments) == ("k", 3, found.arguments)
    assert run.tags is not None


def test_every_attempt_is_recorded_in_order(store, worker):
    first = enqueue_and_claim(store)
    retry_now(store, first)
    retry_now(store, claim_one(store))
    succeed(store, claim_one(store))

    records = store.list_attempts(first.run_id)

    assert [record.outcome for record in records] == ["raised", "raised", "returned"]
    assert [record.claim_number for record in records] == [1, 2, 3]
    assert [record.attempt for record in records] == [1, 2, 3]


def test_a_hand_back_records_no_attempt(store, worker):
    found = enqueue_and_claim(store)

    assert hand_back(store, found) is Settled.DONE

    run = run_of(store, found.run_id)
    assert (run.state, run.attempt, run.claim_number) == ("queued", 1, 1)
    assert store.list_attempts(found.run_id) == []


def test_a_snooze_is_recorded_and_costs_no_attempt(store, worker):
    found = enqueue_and_claim(store)
    again = Requeue(10.0, found.attempt, found.retries_used, found.crashes, found.lane)

    settle(store, settle_op(found, "snoozed", again))

    assert outcomes_of(store, found.run_id) == [(1, "snoozed")]
    assert run_of(store, found.run_id).attempt == 1


# -- the fence --


@pytest.mark.parametrize("late", LATE_WORDS, ids=lambda op: op.__name__)
def test_a_worker_that_was_recovered_cannot_settle(store, worker, clock, tables, late):
    slow = enqueue_and_claim(store, key="k")
    recover(store)
    before = tables.everything()
    clock.advance(10)

    answer = settle(store, late(slow))

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before


@pytest.mark.parametrize("late", LATE_WORDS, ids=lambda op: op.__name__)
def test_a_worker_that_was_recovered_cannot_settle_a_run_that_another_worker_has_claimed(
    store, worker, tables, late
):
    slow = enqueue_and_claim(store, key="k")
    recover(store, judge=unstarted)
    register(store, OTHER_WORKER)
    quick = claim_one(store, worker=OTHER_WORKER)
    before = tables.everything()

    answer = settle(store, late(slow))

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before
    assert succeed(store, quick) is Settled.DONE


@pytest.mark.parametrize("late", LATE_WORDS, ids=lambda op: op.__name__)
def test_a_worker_that_was_recovered_cannot_settle_a_run_that_another_worker_has_ended(
    store, worker, clock, tables, late
):
    slow = enqueue_and_claim(store, key="k")
    recover(store, judge=unstarted)
    register(store, OTHER_WORKER)
    succeed(store, claim_one(store, worker=OTHER_WORKER), '"quick"')
    clock.advance(10)
    before = tables.everything()

    answer = settle(store, late(slow))

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before


@pytest.mark.parametrize("late", LATE_WORDS, ids=lambda op: op.__name__)
@pytest.mark.parametrize("judge", [None, unstarted], ids=["lost", "handed back"])
def test_a_worker_that_was_recovered_cannot_settle_a_run_that_was_cancelled_since(
    store, worker, clock, tables, late, judge
):
    slow = enqueue_and_claim(store, key=key("k", ttl_seconds=100))
    recover(store, **{} if judge is None else {"judge": judge})
    cancel(store, slow.run_id)
    clock.advance(10)
    before = tables.everything()

    answer = settle(store, late(slow))

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before


@pytest.mark.parametrize("late", LATE_WORDS, ids=lambda op: op.__name__)
def test_a_claim_of_an_earlier_generation_settles_nothing(store, worker, tables, late):
    slow = enqueue_and_claim(store)
    recover(store, judge=crashed)
    redrive(store, slow.run_id)
    before = tables.everything()

    answer = settle(store, late(slow))

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before


@pytest.mark.parametrize("late", LATE_WORDS, ids=lambda op: op.__name__)
def test_a_claim_number_that_was_never_given_settles_nothing(store, worker, tables, late):
    found = enqueue_and_claim(store)
    before = tables.everything()

    answer = settle(store, late(found._replace(claim_number=2)))

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before


def test_a_queued_run_cannot_be_settled(store, worker, tables):
    found = enqueue_and_claim(store)
    hand_back(store, found)
    before = tables.everything()

    answer = succeed(store, found)

    assert answer is Settled.CLAIM_LOST
    assert tables.everything() == before


@pytest.mark.parametrize("count", [2, 50, 234])
def test_a_lost_claim_in_a_batch_does_not_affect_the_others(store, worker, count):
    enqueue_many(store, count)
    claims = claim(store)
    lost_one = claims[count // 2]
    hand_back(store, lost_one)

    answers = store.apply([success(claim) for claim in claims])

    expected = [Settled.CLAIM_LOST if claim is lost_one else Settled.DONE for claim in claims]
    assert answers == expected
    assert state_of(store, lost_one.run_id) == "queued"
    ended = [claim.run_id for claim in claims if claim is not lost_one]
    assert set(store.get_states(ended).values()) == {"succeeded"}


def test_a_batch_may_mix_all_verdicts(store, worker):
    enqueue_many(store, 5)
    ended, failed, again, later, gone = claim(store)
    hand_back(store, gone)

    words = [another_try(later, 60.0), success(ended), success(gone)]
    answers = store.apply([*words, another_try(again), failure(failed)])

    done = Settled.DONE
    assert answers == [done, done, Settled.CLAIM_LOST, done, done]
    states = [state_of(store, claim.run_id) for claim in (ended, failed, again, later, gone)]
    assert states == ["succeeded", "failed", "queued", "queued", "queued"]
    assert {c.run_id for c in claim(store)} == {again.run_id, gone.run_id}


# -- repeated settles, as after a lost reply --


@pytest.mark.parametrize("words", [success, failure, another_try], ids=lambda op: op.__name__)
def test_a_repeated_settle_is_written_once(store, worker, clock, tables, words):
    found = enqueue_and_claim(store, key="k")
    first = settle(store, words(found))
    before = tables.everything()
    clock.advance(10)

    second = settle(store, words(found))

    assert (first, second) == (Settled.DONE, Settled.DONE)
    assert tables.everything() == before


def test_a_settle_that_is_repeated_in_one_call_is_written_once(store, worker):
    found = enqueue_and_claim(store)

    answers = store.apply([success(found), success(found)])

    assert answers == [Settled.DONE, Settled.DONE]
    assert outcomes_of(store, found.run_id) == [(1, "returned")]


def test_a_success_that_is_repeated_after_a_redrive_is_done(store, worker, tables):
    found = enqueue_and_claim(store)
    succeed(store, found)
    redrive(store, found.run_id)
    before = tables.everything()

    answer = succeed(store, found)

    assert answer is Settled.DONE
    assert tables.everything() == before


def test_a_retry_that_is_repeated_after_the_next_claim_is_done(store, worker, tables):
    found = enqueue_and_claim(store)
    retry_now(store, found)
    claim_one(store)
    before = tables.everything()

    answer = retry_now(store, found)

    assert answer is Settled.DONE
    assert tables.everything() == before


def test_a_retry_that_is_repeated_after_a_cancel_is_done(store, worker, clock, tables):
    found = enqueue_and_claim(store, key="k")
    retry_later(store, found, 10.0)
    cancel(store, found.run_id)
    clock.advance(10)
    before = tables.everything()

    answer = retry_later(store, found, 10.0)

    assert answer is Settled.DONE
    assert tables.everything() == before


# -- a cancel during the attempt --


@pytest.mark.parametrize("words", [another_try, hand_back_op], ids=lambda op: op.__name__)
def test_a_run_with_a_cancel_request_is_not_queued_again(store, worker, tables, words):
    found = enqueue_and_claim(store)
    cancel(store, found.run_id)
    before = tables.everything()

    answer = settle(store, words(found))

    assert answer is Settled.CANCEL_REQUESTED
    assert tables.everything() == before
    cancelled = settle_op(found, "raised", Finish(State.CANCELLED, "requested"), error=BOOM)
    assert settle(store, cancelled) is Settled.DONE
    assert run_of(store, found.run_id).cause == "requested"


def test_a_body_that_returned_has_succeeded_even_with_a_cancel_request(store, worker):
    found = enqueue_and_claim(store)
    cancel(store, found.run_id)

    assert succeed(store, found) is Settled.DONE
    assert state_of(store, found.run_id) == "succeeded"


# -- unusual texts --


def test_results_and_errors_are_stored_unchanged(store, worker):
    awkward = 'Zürich "→" \\ 𝄞 %s :x ? \'; -- \n\t'
    enqueue_many(store, 2)
    good, bad = claim(store)

    store.apply([success(good, awkward), failure(bad, ErrorText(awkward, awkward, awkward, "f"))])

    run = run_of(store, bad.run_id)
    assert run_of(store, good.run_id).result == awkward
    assert (run.error, run.traceback) == (f"{awkward}: {awkward}", awkward)


def test_a_tick_between_claim_and_settle_changes_nothing(store, worker):
    found = enqueue_and_claim(store)
    tick(store)

    assert succeed(store, found) is Settled.DONE


@pytest.mark.parametrize("ending", [success, another_try])
def test_settles_of_two_claims_of_one_run_in_one_call_follow_the_latest(store, worker, ending):
    lost = enqueue_and_claim(store)
    recover(store)
    register(store, OTHER_WORKER)
    latest = claim_one(store, worker=OTHER_WORKER)

    answers = store.apply([ending(latest), ending(lost)])

    assert latest.claim_number > lost.claim_number
    assert answers == [Settled.DONE, Settled.CLAIM_LOST]
