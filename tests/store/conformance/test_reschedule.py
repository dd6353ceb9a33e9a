"""An operator changes when, how urgently and in which queue a queued run starts."""

import json
import threading

import pytest

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.states import SlotKind
from duly.store.ops.op import makes_ready
from duly.store.ops.operators import LimitQueue, RescheduledRun, RescheduleRun, SetQueueCapacity
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.steps import SendEvent
from duly.store.ops.upkeep import Tick
from tests.store.conformance.test_schedules import fire, ledger, put
from tests.store.conformance.test_steps import begin, suspend
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    MINUTE,
    SECOND,
    TASK,
    TASKS,
    TIMEOUT,
    UNKNOWN_RUN,
    WORKER,
    accept,
    cancel,
    claim,
    claim_one,
    claimed_ids,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_many,
    enqueue_one,
    fail,
    hand_over,
    key,
    listed_ids,
    outcomes_of,
    pause,
    redrive,
    register,
    resume,
    retry_later,
    retry_now,
    run_of,
    succeed,
    take,
    tick,
)

DONE = RescheduledRun(done=True, state="queued")


def reschedule(store, run_id, **changes):
    """Reschedule a run and return the whole answer."""
    return store.do(RescheduleRun(run_id, ACTOR, **changes))


# -- the places in which a queued run can be --


def ready(store):
    return enqueue_one(store)


def delayed(store):
    return enqueue_one(store, delay_seconds=60)


def paused(store):
    run_id = enqueue_one(store)
    pause(store)
    tick(store)
    resume(store)
    return run_id


def unregistered(store):
    run_id = enqueue_one(store, task="shop:other")
    tick(store)
    register(store, "00000000-0000-7000-8000-00000000cccc", tasks=("shop:other",))
    return run_id


def waiting_for_a_retry(store):
    found = enqueue_and_claim(store)
    retry_later(store, found, 60.0)
    return found.run_id


def queued_again(store):
    found = enqueue_and_claim(store)
    retry_now(store, found)
    return found.run_id


def of_the_next_generation(store):
    run_id = enqueue_and_fail(store)
    redrive(store, run_id)
    return run_id


PLACES = pytest.mark.parametrize(
    "put",
    [
        ready,
        delayed,
        paused,
        unregistered,
        waiting_for_a_retry,
        queued_again,
        of_the_next_generation,
    ],
)
EVERY_TASK = (*TASKS, "shop:other")


def running(store):
    return enqueue_and_claim(store).run_id


@PLACES
def test_a_queued_run_starts_now_if_it_is_asked_to(store, worker, put):
    run_id = put(store)

    answer = reschedule(store, run_id, delay=0)

    assert answer == DONE
    assert claimed_ids(store, tasks=EVERY_TASK) == [run_id]


@PLACES
def test_a_queued_run_starts_later_if_it_is_asked_to(store, worker, clock, put):
    run_id = put(store)

    answer = reschedule(store, run_id, delay=2 * MINUTE)

    assert answer == DONE
    assert run_of(store, run_id).due_at == clock.now() + 2 * MINUTE
    clock.advance(119.9)
    tick(store)
    assert claim(store, tasks=EVERY_TASK) == []
    clock.advance(0.1)
    tick(store)
    assert claimed_ids(store, tasks=EVERY_TASK) == [run_id]


@PLACES
def test_another_queue_and_priority_leave_everything_else_as_it_was(store, worker, put):
    run_id = put(store)
    before = run_of(store, run_id)

    reschedule(store, run_id, queue="mail", priority=7)

    after = run_of(store, run_id)
    assert (after.queue, after.priority) == ("mail", 7)
    assert after._replace(queue="default", priority=0) == before._replace(parked=None)
    assert listed_ids(store) == [run_id]
    assert outcomes_of(store, run_id) == outcomes_of(store, run_id)


def test_a_time_may_be_given_and_one_in_the_past_is_now(store, worker, clock):
    first, second = enqueue_many(store, 2, delay_seconds=600)

    reschedule(store, first, at=clock.now() + MINUTE)
    reschedule(store, second, at=clock.now() - MINUTE)

    assert run_of(store, first).due_at == clock.now() + MINUTE
    assert run_of(store, second).due_at == clock.now()
    assert claimed_ids(store) == [second]


def test_a_run_that_is_due_keeps_its_place_if_it_is_asked_to_start_now(store, worker, clock):
    first, second = enqueue_many(store, 2)
    clock.advance(5)

    reschedule(store, first, delay=0)

    assert claimed_ids(store) == [first, second]


def test_runs_start_in_the_order_of_their_new_priorities(store, worker):
    first, second, third = enqueue_many(store, 3)

    reschedule(store, third, priority=5)
    reschedule(store, first, priority=-5)

    assert claimed_ids(store) == [third, second, first]


def test_a_tick_knows_of_a_new_time(store, worker):
    run_id = enqueue_one(store, delay_seconds=60)

    reschedule(store, run_id, delay=30 * SECOND)

    assert tick(store).next_due_in == 30 * SECOND


def test_the_next_attempt_of_a_retry_that_starts_early_counts_as_usual(store, worker):
    found = enqueue_and_claim(store)
    retry_later(store, found, 60.0)

    reschedule(store, found.run_id, delay=0)

    again = claim_one(store)
    assert (again.claim_number, again.attempt, again.retries_used) == (2, 2, 1)
    fail(store, again)
    assert outcomes_of(store, found.run_id) == [(1, "raised"), (2, "raised")]


def test_who_rescheduled_what_is_recorded(store, worker, clock):
    run_id = enqueue_one(store)
    clock.advance(1)

    reschedule(store, run_id, delay=MINUTE, priority=3, queue="mail", reason="too early")

    (act,) = store.list_audit_entries(run_id, 10)
    assert (act.actor, act.at, act.reason) == (ACTOR, clock.now(), "too early")
    assert act.act.startswith("reschedule to ")
    assert act.act.endswith(" UTC, priority 3, queue mail")


# -- refusals --


@pytest.mark.parametrize(
    ("put", "state", "why"),
    [
        (running, "running", "it is running"),
        (enqueue_and_succeed, "succeeded", "it has ended: succeeded"),
        (enqueue_and_fail, "failed", "it has ended: failed"),
    ],
    ids=["running", "succeeded", "failed"],
)
def test_a_run_that_is_not_queued_stays_as_it_is(store, worker, tables, put, state, why):
    run_id = put(store)
    before = tables.everything()

    answer = reschedule(store, run_id, delay=0, priority=5, queue="mail")

    assert (answer.done, answer.state) == (False, state)
    assert why in answer.refusal
    assert tables.everything() == before


def test_an_unknown_run_is_not_rescheduled(store, tables):
    before = tables.everything()

    answers = [reschedule(store, run_id, delay=0) for run_id in (UNKNOWN_RUN, "no id")]

    assert answers == [RescheduledRun(done=False, state=None)] * 2
    assert tables.everything() == before


@pytest.mark.parametrize("kind", ["sleep", "wait", "gather"])
def test_a_run_that_waits_in_a_step_stays_as_it_is(store, worker, kind, tables):
    held = enqueue_and_claim(store)
    awaited = json.dumps([enqueue_one(store)]) if kind == "gather" else "paid"
    begin(store, held, kind, after=None if kind == "gather" else MINUTE, awaited=awaited)
    suspend(store, held, 60.0)
    before = tables.everything()

    answer = reschedule(store, held.run_id, delay=0)

    assert (answer.done, answer.state) == (False, "queued")
    assert "it waits in step 'name'" in answer.refusal
    assert tables.everything() == before


def test_a_run_whose_wait_is_over_can_be_moved_to_another_queue(store, worker, clock):
    held = enqueue_and_claim(store)
    begin(store, held, "sleep", after=MINUTE)
    suspend(store, held, 60.0)
    clock.advance(61.0)

    assert not reschedule(store, held.run_id, delay=MINUTE).done
    assert reschedule(store, held.run_id, queue="mail", priority=5).done

    run = run_of(store, held.run_id)
    assert (run.queue, run.priority) == ("mail", 5)
    assert claimed_ids(store, queue="mail") == [held.run_id]


@pytest.mark.parametrize("kind", ["sleep", "wait", "gather"])
def test_a_retry_starts_now_although_a_wait_of_its_last_attempt_is_open(store, worker, kind):
    held = enqueue_and_claim(store)
    awaited = "[]" if kind == "gather" else "paid"
    begin(store, held, kind, after=None if kind == "gather" else MINUTE, awaited=awaited)
    retry_later(store, held, 60.0)

    assert reschedule(store, held.run_id, delay=0).done

    assert claimed_ids(store) == [held.run_id]


def test_a_run_whose_event_was_sent_stays_as_it_is_until_it_has_seen_it(store, worker):
    held = enqueue_and_claim(store)
    begin(store, held, "wait", after=MINUTE, awaited="paid")
    suspend(store, held, 60.0)
    store.do(SendEvent("paid", "1"))
    tick(store)

    assert not reschedule(store, held.run_id, delay=10 * MINUTE).done

    assert claimed_ids(store) == [held.run_id]


def test_a_run_is_not_moved_to_a_time_after_its_expiry(store, worker, clock, tables):
    run_id = enqueue_one(store, expires_seconds=60)
    before = tables.everything()

    refused = [reschedule(store, run_id, delay=seconds * SECOND) for seconds in (60, 90)]

    assert [answer.done for answer in refused] == [False, False]
    assert all("it would not start before it expires" in answer.refusal for answer in refused)
    assert tables.everything() == before
    assert reschedule(store, run_id, delay=59 * SECOND).done
    clock.advance(60)
    tick(store)
    assert (run_of(store, run_id).state, run_of(store, run_id).cause) == ("cancelled", "expired")


def test_a_run_that_has_expired_is_not_rescheduled_before_a_tick_ends_it(store, worker, clock):
    run_id = enqueue_one(store, expires_seconds=10)
    clock.advance(10)

    assert not reschedule(store, run_id, priority=5).done


# -- queues, limits and keys --


def test_a_full_queue_takes_no_run_that_is_due(store, worker, tables):
    store.do(SetQueueCapacity("mail", 2, ACTOR))
    runs = enqueue_many(store, 4)
    enqueue_one(store, queue="mail")
    assert reschedule(store, runs[0], queue="mail").done
    before = tables.everything()

    refused = reschedule(store, runs[1], queue="mail")

    assert refused == RescheduledRun(done=False, state="queued", max_size=2)
    assert tables.everything() == before
    assert reschedule(store, runs[2], queue="mail", delay=MINUTE).done, "as enqueue does"
    assert reschedule(store, runs[0], queue="mail", priority=1).done, "it is in this queue"
    claim(store, 1, queue="mail")
    assert reschedule(store, runs[1], queue="mail").done


def test_many_moves_fill_a_queue_only_up_to_its_capacity_without_a_tick(store):
    store.do(SetQueueCapacity("mail", 3, ACTOR))
    runs = enqueue_many(store, 5)

    answers = [reschedule(store, run_id, queue="mail").done for run_id in runs]

    assert answers == [True, True, True, False, False]


def test_a_run_in_a_paused_queue_stays_there_whatever_its_time(store, worker):
    run_id = enqueue_one(store, queue="mail", delay_seconds=60)
    pause(store, "mail")

    reschedule(store, run_id, delay=0)

    assert claim(store) == []
    tick(store)
    assert run_of(store, run_id).parked == "paused"
    assert claim(store) == []


def test_a_parked_run_that_is_to_start_later_waits_for_its_time(store, worker, clock):
    pause(store)
    run_id = enqueue_one(store)
    tick(store)

    reschedule(store, run_id, delay=MINUTE)

    assert run_of(store, run_id).parked is None
    assert tick(store).next_due_in == MINUTE
    clock.advance(60)
    tick(store)
    assert run_of(store, run_id).parked == "paused"


def test_a_run_is_moved_out_of_a_paused_queue(store, worker):
    pause(store)
    run_id = enqueue_one(store)
    tick(store)

    reschedule(store, run_id, queue="mail")

    assert claimed_ids(store) == [run_id]


def test_a_run_of_a_task_that_no_worker_registers_is_parked_again(store, worker):
    run_id = enqueue_one(store, task="shop:other", delay_seconds=60)

    reschedule(store, run_id, delay=0)
    tick(store)

    assert run_of(store, run_id).parked == "unregistered"


def test_a_move_respects_the_limit_of_the_new_queue(store, worker):
    store.do(LimitQueue("mail", 1, ACTOR))
    first, second = enqueue_many(store, 2)
    for run_id in (first, second):
        reschedule(store, run_id, queue="mail")
    limits = ClaimLimits({})

    claims = store.do(ClaimRuns(WORKER, (Want(None, LANE, 10),), TASKS, limits=limits))

    assert [found.run_id for found in claims] == [first]


def test_a_run_under_a_limit_stays_under_it(store, worker):
    lane = limited_lane(LANE, TASK)
    first, second = enqueue_many(store, 2, lane=lane)
    reschedule(store, second, priority=5, queue="mail", delay=0)
    op = ClaimRuns(WORKER, (Want(None, LANE, 10),), TASKS, limits=ClaimLimits({TASK: 1}))

    (found,) = store.do(op)

    assert (found.run_id, found.lane) == (second, lane)
    assert store.do(op) == []
    succeed(store, found)
    assert [each.run_id for each in store.do(op)] == [first]


def test_a_key_is_kept_by_its_run(store, worker, clock):
    run_id = enqueue_one(store, key=key("k", ttl_seconds=10))

    reschedule(store, run_id, delay=MINUTE, queue="mail")

    assert (accept(store, key="k").run_id, run_of(store, run_id).key) == (run_id, "k")
    clock.advance(60)
    tick(store)
    succeed(store, claim_one(store))
    clock.advance(10)
    assert accept(store, key="k").new


def test_overlapping_instants_of_a_schedule_wait_for_a_run_that_was_rescheduled(
    store, worker, clock
):
    put(store, overlap="queue")
    begin = clock.now()
    clock.advance(60)
    fire(store)
    (run_id,) = listed_ids(store)

    reschedule(store, run_id, delay=2 * MINUTE, queue="mail")

    for _ in range(2):
        clock.advance(60)
        fire(store)
    assert [row[1] for row in ledger(store, begin)] == ["run", "waiting", "waiting"]
    tick(store)
    succeed(store, claim_one(store))
    clock.advance(0.2)
    fire(store)
    assert [row[1] for row in ledger(store, begin)] == ["run", "run", "waiting"]


def test_tags_find_a_rescheduled_run(store, worker):
    run_id = enqueue_one(store, tags={"customer": "17"})

    reschedule(store, run_id, delay=MINUTE)

    assert listed_ids(store, tag=("customer", "17")) == [run_id]


def test_a_rescheduled_run_can_be_cancelled(store, worker):
    run_id = enqueue_one(store)
    reschedule(store, run_id, delay=MINUTE)

    assert cancel(store, run_id) == "cancelled"
    assert not reschedule(store, run_id, delay=0).done
    tick(store)
    assert claim(store) == []


# -- runs that another engine carries --


@pytest.mark.parametrize("lane", [SlotKind.CARRIED, SlotKind.CARRIED_HOLD])
def test_a_carried_run_that_was_not_sent_yet_is_handed_over_at_its_new_time(
    store, worker, clock, lane
):
    run_id = enqueue_one(store, lane=lane)

    assert reschedule(store, run_id, delay=MINUTE, priority=4, queue="mail").done

    assert hand_over(store) == []
    clock.advance(60)
    tick(store)
    (message,) = hand_over(store)
    assert (message.run_id, message.queue, message.priority) == (run_id, "mail", 4)
    assert take(store, message) is not None
    assert take(store, message) is None


@pytest.mark.parametrize("lane", [SlotKind.CARRIED, SlotKind.CARRIED_HOLD])
def test_a_carried_run_that_was_sent_stays_as_it_is_and_is_not_sent_twice(
    store, worker, clock, lane, tables
):
    run_id = enqueue_one(store, lane=lane)
    (message,) = hand_over(store)
    before = tables.everything()

    answer = reschedule(store, run_id, delay=MINUTE, queue="mail")

    assert (answer.done, answer.state) == (False, "queued")
    assert "it was sent to the engine that carries it" in answer.refusal
    assert tables.everything() == before
    assert hand_over(store) == []
    assert take(store, message).run_id == run_id


def test_a_carried_run_waits_for_its_time_after_its_queue_was_paused(store, worker, clock):
    run_id = enqueue_one(store, lane=SlotKind.CARRIED)
    (early,) = hand_over(store)
    pause(store)
    store.do(Tick(100))
    assert reschedule(store, run_id, delay=MINUTE).done
    resume(store)

    assert take(store, early) is None, "its message came too early"
    clock.advance(60)
    tick(store)
    (message,) = hand_over(store)
    claims = [take(store, each) for each in (message, early)]
    assert [found is not None for found in claims] == [True, False]


# -- hints --


def test_workers_are_told_of_a_run_that_was_rescheduled(store, worker):
    run_id = enqueue_one(store, delay_seconds=60)
    told = threading.Event()
    end = store.listen(told.set)
    try:
        told.clear()
        reschedule(store, run_id, delay=0)

        assert told.wait(TIMEOUT)
    finally:
        end()


def test_workers_are_not_told_of_a_run_that_stays_as_it_is():
    op = RescheduleRun(UNKNOWN_RUN, ACTOR, delay=0)
    refused = RescheduledRun(done=False, state="running", refusal="it is running")

    assert makes_ready([op], [DONE])
    assert not makes_ready([op], [refused])
