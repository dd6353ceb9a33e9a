"""Carried runs are handed over again until another engine claims them, and are claimed once."""

import pytest

from duly.carrier import CarrierMessage
from duly.core.states import SlotKind
from duly.core.verdict import Requeue
from duly.store.ops.carriers import PostponeHandOver
from duly.store.ops.operators import Cancel, LimitQueue
from duly.store.ops.runs import ClaimRuns, Settle, Want
from duly.store.ops.upkeep import Prune, Tick
from tests.store.conformance.verbs import (
    ACTOR,
    MINUTE,
    OTHER_TASK,
    SECOND,
    TASK,
    WORKER,
    enqueue_one,
    hand_over,
    pause,
    redrive,
    register,
    resume,
    succeed,
    take,
)

MINE = (TASK,)


@pytest.fixture
def run_id(store):
    """A run that waits to be handed over, and a worker that knows its task."""
    register(store)
    return enqueue_one(store, lane=SlotKind.CARRIED)


def test_a_run_is_handed_over_once_and_claimed_by_its_id(store, run_id):
    assert store.peek(MINE).carried
    (message,) = hand_over(store)
    assert message == CarrierMessage(run_id, 0, TASK, "default", 0)
    assert hand_over(store) == []
    assert not store.peek(MINE).carried

    claim = take(store, message)

    assert (claim.run_id, claim.claim_number, claim.attempt) == (run_id, 1, 1)
    assert store.get_run(run_id).state == "running"
    assert take(store, message) is None, "a duplicate of the message claims nothing"
    assert store.peek(MINE).next_stale_in is None


def test_the_limit_of_a_queue_counts_runs_that_another_engine_runs(store, run_id, clock):
    runs = [run_id, *(enqueue_one(store, lane=SlotKind.CARRIED) for _ in range(4))]
    messages = hand_over(store)
    assert {message.run_id for message in messages} == set(runs)
    store.do(LimitQueue("default", 2, ACTOR))

    taken = [take(store, message) for message in messages]

    assert [claim is not None for claim in taken] == [True, True, False, False, False]
    succeed(store, taken[0])
    clock.advance(5.1)
    again = hand_over(store)
    assert {message.run_id for message in again} == {message.run_id for message in messages[2:]}
    assert [take(store, message) is not None for message in again] == [True, False, False]


def test_no_more_of_a_limited_queue_is_handed_over_than_may_run(store, run_id):
    for _ in range(4):
        enqueue_one(store, lane=SlotKind.CARRIED)
    store.do(LimitQueue("default", 2, ACTOR))

    first, *_ = hand_over(store)

    assert hand_over(store) == []
    succeed(store, take(store, first))
    assert len(hand_over(store)) == 1


def test_both_lanes_of_a_limited_queue_share_its_limit(store, run_id):
    for lane in (SlotKind.CARRIED, SlotKind.CARRIED_HOLD, SlotKind.CARRIED_HOLD):
        enqueue_one(store, lane=lane)
    store.do(LimitQueue("default", 3, ACTOR))

    assert len(hand_over(store)) == 3


def test_the_runs_of_high_priority_are_handed_over_first(store, run_id):
    high, low = (enqueue_one(store, lane=SlotKind.CARRIED, priority=each) for each in (5, -5))

    messages = hand_over(store)

    assert [message.run_id for message in messages] == [high, run_id, low]


def test_each_run_that_is_handed_over_has_a_mark_and_no_other_has_one(store, run_id, tables):
    for _ in range(4):
        enqueue_one(store, lane=SlotKind.CARRIED)

    messages = hand_over(store, limit=2)

    marks = {str(row[0]) for row in tables.rows("SELECT run_id FROM duly_handed")}
    handed = tables.rows("SELECT id FROM duly_runs WHERE lane = 'handed'")
    assert marks == {str(row[0]) for row in handed} == {message.run_id for message in messages}


def test_stale_runs_of_several_tasks_are_handed_over_again_up_to_the_limit(store, run_id, clock):
    others = {enqueue_one(store, lane=SlotKind.CARRIED, task=OTHER_TASK) for _ in range(3)}
    both = (TASK, OTHER_TASK)
    assert {message.run_id for message in hand_over(store, *both)} == {run_id, *others}
    clock.advance(60)

    batches = [hand_over(store, *both, limit=2) for _ in range(3)]

    assert [len(batch) for batch in batches] == [2, 2, 0]
    assert {message.run_id for batch in batches for message in batch} == {run_id, *others}


def test_a_claim_of_our_own_workers_does_not_take_a_carried_run(store, run_id):
    wants = tuple(Want(None, lane, 10) for lane in SlotKind)[:7]
    for _ in range(2):
        assert store.apply([ClaimRuns(WORKER, wants, (TASK,))]) == [[]]
        assert not store.peek().ready
        hand_over(store)


def test_a_run_that_is_not_claimed_is_handed_over_again_at_growing_intervals(store, run_id, clock):
    (message,) = hand_over(store)
    for minutes in (1, 2, 3, 3):
        assert store.peek(MINE).next_stale_in == minutes * MINUTE
        clock.advance(60 * minutes - 0.000001)
        assert hand_over(store) == []
        clock.advance(0.000001)
        assert hand_over(store) == [message]


def test_a_run_that_was_handed_over_the_allowed_number_of_times_ends_as_a_dead_letter(
    store, run_id, clock, tables
):
    (message,) = hand_over(store, most=2)
    clock.advance(60)
    assert hand_over(store, most=2) == [message]
    # The last message still has its full time to be claimed.
    assert store.peek(MINE).next_stale_in == 3 * MINUTE

    clock.advance(180)
    assert hand_over(store, most=2) == []

    run = store.get_run(run_id)
    assert (run.state, run.cause) == ("failed", "undelivered")
    assert "sent to its carrier 2 times" in run.error
    assert take(store, message) is None
    assert tables.rows("SELECT run_id FROM duly_handed") == []
    assert redrive(store, run_id).done
    store.do(Tick(10))
    assert [message.run_id for message in hand_over(store, most=2)] == [run_id]


def test_the_last_message_can_be_claimed_until_it_is_stale(store, run_id, clock):
    hand_over(store, most=2)
    clock.advance(60)
    (message,) = hand_over(store, most=2)
    clock.advance(179)
    assert take(store, message) is not None
    clock.advance(2)
    assert hand_over(store, most=2) == []
    assert store.get_run(run_id).state == "running"


def test_messages_that_arrived_while_the_queue_was_paused_do_not_count(store, run_id, clock):
    hand_over(store, most=2)
    clock.advance(60)
    hand_over(store, most=2)
    pause(store)

    resume(store)

    assert len(hand_over(store, most=2)) == 1
    assert store.get_run(run_id).state == "queued"


def test_an_outage_of_the_broker_does_not_use_up_the_allowed_hand_overs(store, run_id, clock):
    for _ in range(5):
        assert len(hand_over(store, most=2)) == 1
        store.do(PostponeHandOver((run_id,), 5 * SECOND))
        clock.advance(5)
    assert len(hand_over(store, most=2)) == 1


def test_a_run_whose_message_could_not_be_sent_is_handed_over_again_soon(store, run_id, clock):
    (message,) = hand_over(store)

    assert store.apply([PostponeHandOver((run_id,), 5 * SECOND)]) == [1]

    clock.advance(5)
    assert hand_over(store) == [message]


def test_one_call_hands_over_at_most_its_limit_of_runs(store):
    register(store)
    ids = {enqueue_one(store, lane=SlotKind.CARRIED) for _ in range(5)}

    batches = [hand_over(store, limit=2) for _ in range(4)]

    assert [len(batch) for batch in batches] == [2, 2, 1, 0]
    assert {message.run_id for batch in batches for message in batch} == ids


def test_a_worker_neither_sends_nor_postpones_runs_of_tasks_it_does_not_know(store, run_id, clock):
    assert hand_over(store, OTHER_TASK) == []
    assert not store.peek((OTHER_TASK,)).carried
    hand_over(store)
    clock.advance(60)
    assert store.peek((OTHER_TASK,)).next_stale_in is None

    assert hand_over(store, OTHER_TASK) == []

    assert store.peek((OTHER_TASK, TASK)).next_stale_in == 0
    assert [message.run_id for message in hand_over(store)] == [run_id]


def test_a_mark_without_a_worker_for_its_task_is_pruned_after_its_run(store, run_id, clock, tables):
    kept = enqueue_one(store, lane=SlotKind.CARRIED)
    hand_over(store)
    store.do(Cancel(run_id, "ann"))
    clock.advance(60 + 1)
    store.do(Prune(2 * SECOND, 10))
    assert len(tables.rows("SELECT run_id FROM duly_handed")) == 2, "the marks are kept at first"
    clock.advance(2)

    store.do(Prune(2 * SECOND, 10))

    assert [str(row[0]) for row in tables.rows("SELECT run_id FROM duly_handed")] == [kept]


def test_a_run_that_is_queued_again_is_handed_over_for_its_next_claim(store, run_id):
    (first,) = hand_over(store)
    claim = take(store, first)
    verdict = Requeue(0.0, 2, 1, 0, SlotKind.CARRIED)
    store.do(Settle(run_id, claim.claim_number, "raised", verdict, 0))
    store.do(Tick(10))

    (second,) = hand_over(store)

    assert second == first._replace(claim_number=1)
    assert take(store, first) is None, "a late message of the first claim claims nothing"
    assert take(store, second).claim_number == 2


def test_a_worker_that_is_not_live_claims_nothing(store, run_id):
    (message,) = hand_over(store)

    assert take(store, message, worker="0" * 8 + "-0000-7000-8000-" + "0" * 12) is None
    assert take(store, message) is not None


def test_a_cancelled_run_is_not_claimed_and_its_mark_is_deleted(store, run_id, clock):
    (message,) = hand_over(store)
    store.do(Cancel(run_id, "ann"))

    assert take(store, message) is None
    clock.advance(60)
    assert hand_over(store) == []
    assert store.peek(MINE).next_stale_in is None


def test_a_run_of_a_paused_queue_stays_and_is_handed_over_again_after_the_resume(store, run_id):
    (message,) = hand_over(store)
    pause(store)
    assert take(store, message) is None
    store.do(Tick(10))
    assert store.get_run(run_id).parked == "paused"
    assert hand_over(store) == []

    resume(store)
    store.do(Tick(10))
    store.do(Tick(10))

    assert hand_over(store) == [message]
    assert take(store, message) is not None


def test_a_run_whose_message_arrived_while_its_queue_was_paused_is_handed_over_at_once(
    store, run_id
):
    (message,) = hand_over(store)
    pause(store)
    assert take(store, message) is None

    resume(store)

    assert hand_over(store) == [message]


def test_a_run_that_was_handed_over_thousands_of_times_does_not_block_the_others(
    store, run_id, clock, tables
):
    hand_over(store)
    tables.execute("UPDATE duly_handed SET times = 2000")
    clock.advance(60)

    assert [message.run_id for message in hand_over(store)] == [run_id]


def test_an_expired_run_is_not_handed_over(store, clock):
    register(store)
    enqueue_one(store, lane=SlotKind.CARRIED, expires=SECOND)
    (message,) = hand_over(store)
    clock.advance(1)

    assert take(store, message) is None
