"""Runs follow a task that gains or loses its carrier, once all live workers agree on it."""

import pytest

from duly.clock import new_id
from duly.core.states import SlotKind
from duly.store.ops.carriers import RerouteRuns
from tests.store.conformance.verbs import (
    OTHER_TASK,
    OTHER_WORKER,
    TASK,
    at_once,
    cancel,
    claim,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    hand_over,
    pause,
    recover,
    register,
    resume,
    retry_later,
    run_of,
    succeed,
    take,
    tick,
)

OURS = {TASK: SlotKind.THREAD}
CARRIED = {TASK: SlotKind.CARRIED}


def relane(store, limit=100):
    return store.do(RerouteRuns(limit))


def lane_of(store, run_id):
    return run_of(store, run_id).lane


def test_carried_runs_return_to_our_workers_when_their_task_has_no_carrier_any_more(store):
    handed, handed_hold = (enqueue_one(store, lane=f"carried{hold}") for hold in ("", "-hold"))
    messages = hand_over(store)
    fresh, fresh_hold = (enqueue_one(store, lane=f"carried{hold}") for hold in ("", "-hold"))
    register(store, lanes=OURS)

    assert relane(store) == 4

    assert [lane_of(store, run_id) for run_id in (handed, fresh)] == [SlotKind.THREAD] * 2
    assert [lane_of(store, i) for i in (handed_hold, fresh_hold)] == [SlotKind.THREAD_HOLD] * 2
    assert len(messages) == 2
    assert [take(store, message) for message in messages] == [None, None], (
        "the messages are too late"
    )
    assert hand_over(store) == []
    assert sorted(claimed_ids(store)) == sorted([handed, fresh])
    assert relane(store) == 0


@pytest.mark.parametrize(
    "lane", [SlotKind.THREAD, SlotKind.LOOP, SlotKind.PROCESS, SlotKind.SUSPECT]
)
def test_ready_runs_are_handed_over_when_their_task_has_gained_a_carrier(store, lane):
    run_id = enqueue_one(store, lane=lane)
    register(store, lanes=CARRIED)

    assert relane(store) == 1

    assert claim(store, lane=lane) == []
    (message,) = hand_over(store)
    assert take(store, message).run_id == run_id
    assert relane(store) == 0


def test_a_move_keeps_on_crash_hold_and_adds_it_if_the_task_has_it_now(store):
    was = enqueue_one(store, lane=SlotKind.PROCESS_HOLD)
    will_be = enqueue_one(store, lane=SlotKind.SUSPECT, task=OTHER_TASK)
    register(store, lanes={TASK: SlotKind.CARRIED, OTHER_TASK: SlotKind.CARRIED_HOLD})

    relane(store)

    assert lane_of(store, was) == lane_of(store, will_be) == SlotKind.CARRIED_HOLD


def test_a_run_that_is_not_moved_back_yet_keeps_its_mark(store, tables):
    register(store)
    for _ in range(5):
        enqueue_one(store, lane=SlotKind.CARRIED)
    hand_over(store)
    register(store, lanes=OURS)

    assert relane(store, limit=2) == 2

    marks = {str(row[0]) for row in tables.rows("SELECT run_id FROM duly_handed")}
    left = {str(row[0]) for row in tables.rows("SELECT id FROM duly_runs WHERE lane = 'handed'")}
    assert len(left) == 3
    assert marks == left


def test_runs_stay_in_their_lanes_while_live_workers_disagree(store):
    register(store, lanes=OURS)
    register(store, OTHER_WORKER, lanes=CARRIED)
    ours, carried = enqueue_one(store), enqueue_one(store, lane=SlotKind.CARRIED)

    assert relane(store) == 0
    assert (lane_of(store, ours), lane_of(store, carried)) == (SlotKind.THREAD, SlotKind.CARRIED)

    recover(store, OTHER_WORKER, stopped=True)
    assert relane(store) == 1
    assert sorted(claimed_ids(store)) == sorted([ours, carried])


@pytest.mark.parametrize("lane", [SlotKind.THREAD, SlotKind.CARRIED])
def test_runs_of_a_task_that_no_live_worker_registers_stay_in_their_lane(store, lane):
    run_id = enqueue_one(store, lane=lane)
    register(store, lanes=OURS if lane == SlotKind.CARRIED else CARRIED)
    recover(store)
    register(store, OTHER_WORKER)

    assert relane(store) == 0
    assert lane_of(store, run_id) == lane


def test_a_worker_can_register_again_with_other_lanes(store):
    run_id = enqueue_one(store)
    register(store)
    assert relane(store) == 0

    register(store, lanes=CARRIED)

    assert relane(store) == 1
    assert [message.run_id for message in hand_over(store)] == [run_id]


def test_a_running_run_is_moved_only_after_it_is_queued_again(store, clock):
    register(store, lanes=CARRIED)
    claimed = enqueue_and_claim(store)

    assert relane(store) == 0
    retry_later(store, claimed, 10)
    assert relane(store) == 0, "a delayed run is moved when it is due"
    clock.advance(10)
    tick(store)

    assert relane(store) == 1
    (message,) = hand_over(store)
    assert message.claim_number == 1
    again = take(store, message)
    assert succeed(store, again) is not None
    assert run_of(store, claimed.run_id).state == "succeeded"


def test_a_run_that_was_moved_back_and_forth_is_claimed_once_by_its_first_or_second_message(store):
    run_id = enqueue_one(store, lane=SlotKind.CARRIED)
    (first,) = hand_over(store)
    register(store, lanes=OURS)
    relane(store)
    assert take(store, first) is None
    register(store, lanes=CARRIED)
    relane(store)
    (second,) = hand_over(store)

    assert second == first
    assert take(store, first).run_id == run_id
    assert take(store, second) is None


def test_a_message_from_before_our_claim_claims_nothing(store):
    enqueue_one(store, lane=SlotKind.CARRIED)
    (message,) = hand_over(store)
    register(store, lanes=OURS)
    relane(store)
    (claimed,) = claim(store)
    retry_later(store, claimed, 0)
    tick(store)
    register(store, lanes=CARRIED)
    relane(store)

    assert take(store, message) is None
    assert [again.claim_number for again in hand_over(store)] == [1]


@pytest.mark.parametrize("lanes", [OURS, CARRIED], ids=["back", "away"])
def test_one_round_moves_at_most_its_limit_of_runs(store, lanes):
    register(store, lanes=lanes)
    enqueue_many(store, 5, lane=SlotKind.CARRIED if lanes is OURS else SlotKind.THREAD)

    assert [relane(store, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_backlog_of_another_engine_does_not_block_moves(store):
    register(store, lanes={TASK: SlotKind.THREAD, OTHER_TASK: SlotKind.CARRIED})
    enqueue_many(store, 5, lane=SlotKind.CARRIED, task=OTHER_TASK, priority=9)
    run_id = enqueue_one(store, lane=SlotKind.CARRIED)
    hand_over(store, TASK, OTHER_TASK)

    assert relane(store, limit=2) == 1
    assert claimed_ids(store) == [run_id]


def test_a_peek_reports_runs_that_are_carried_although_their_task_has_no_carrier(store):
    register(store)
    assert not store.peek().strayed
    enqueue_one(store)
    assert not store.peek().strayed
    enqueue_one(store, lane=SlotKind.CARRIED)

    for _ in range(2):
        assert store.peek().strayed
        assert store.peek((OTHER_TASK,)).strayed
        assert not store.peek((OTHER_TASK, TASK)).strayed
        hand_over(store)


def test_a_paused_or_cancelled_run_is_not_queued_by_a_move(store):
    paused = enqueue_one(store, lane=SlotKind.CARRIED, queue="mail")
    cancelled = enqueue_one(store, lane=SlotKind.CARRIED)
    hand_over(store)
    pause(store, "mail")
    cancel(store, cancelled)
    register(store, lanes=OURS)
    tick(store)

    relane(store)
    assert claimed_ids(store) == []
    resume(store, "mail")
    tick(store)
    relane(store)

    assert claimed_ids(store) == [paused]
    assert run_of(store, cancelled).state == "cancelled"


def test_concurrent_claims_messages_and_moves_claim_each_run_once(store, open_another):
    register(store, lanes=OURS)
    enqueue_many(store, 200, lane=SlotKind.CARRIED)
    stores = [store, *(open_another() for _ in range(3))]

    def carry(mine):
        worker = register(mine, new_id())
        messages = [message for _ in range(15) for message in hand_over(mine)]
        return [found for message in messages if (found := take(mine, message, worker))]

    def run(mine):
        worker, found = register(mine, new_id()), []
        while len(found) < 200 and (relane(mine, limit=7) or mine.peek().strayed):
            found += claim(mine, 5, worker=worker)
        return found + claim(mine, worker=worker)

    acts = zip([carry, run, carry, run], stores, strict=True)
    batches = at_once(*(lambda act=act, mine=mine: act(mine) for act, mine in acts))
    rest = claim(store)

    found = [claimed for batch in [*batches, rest] for claimed in batch]
    assert len({claimed.run_id for claimed in found}) == len(found) == 200
    assert {claimed.claim_number for claimed in found} == {1}
