"""Runs that cannot run now are moved out of the way of claims, and return when they can run."""

import pytest

from duly.core.concurrency_limits import limited_lane
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    OTHER_TASK,
    OTHER_WORKER,
    TASK,
    claim,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    hand_back,
    pause,
    pausing,
    recover,
    register,
    resume,
    run_of,
    state_of,
    succeed,
    tick,
)


def test_a_claim_takes_nothing_from_a_queue_that_was_just_paused(store, worker):
    enqueue_one(store)

    pause(store)

    assert claim(store) == []
    assert claim(store, queue="default") == []


def test_a_paused_queue_does_not_affect_other_queues(store, worker):
    enqueue_one(store, queue="default")
    other = enqueue_one(store, queue="mail")

    pause(store, "default")

    assert claimed_ids(store) == [other]


def test_a_queue_can_be_resumed_before_any_tick(store, worker):
    run_id = enqueue_one(store)
    pause(store)

    resume(store)

    assert claimed_ids(store) == [run_id]


def test_a_tick_parks_the_runs_of_a_paused_queue(store, worker):
    ids = enqueue_many(store, 3)
    pause(store)

    ticked = tick(store)

    assert ticked.parked == 3
    assert {run_of(store, run_id).parked for run_id in ids} == {"paused"}
    assert set(store.get_states(ids).values()) == {"queued"}
    assert ticked.next_due_in is None


def test_a_parked_run_keeps_its_limit_whatever_the_name_of_its_task(store, worker):
    lane = limited_lane(LANE, "mail:handed_over", "handed-in")
    run_id = enqueue_one(store, lane=lane)

    pause(store)
    tick(store)

    assert run_of(store, run_id).lane == lane


def test_a_tick_returns_the_runs_of_a_resumed_queue_in_order(store, worker):
    second, first = enqueue_one(store), enqueue_one(store, priority=1)
    pause(store)
    tick(store)
    resume(store)

    assert claim(store) == []
    tick(store)

    assert run_of(store, first).parked is None
    assert claimed_ids(store) == [first, second]


def test_parking_and_unparking_are_bounded(store, worker):
    ids = enqueue_many(store, 5)
    pause(store)
    counts = [tick(store, 2).parked for _ in range(4)]
    resume(store)
    seen = []
    for _ in range(3):
        tick(store, 2)
        seen.append(len(claim(store)))

    assert counts == [2, 2, 1, 0]
    assert seen == [2, 2, 1]
    assert set(store.get_states(ids).values()) == {"running"}


def test_a_run_that_is_enqueued_into_a_paused_queue_waits(store, worker):
    pause(store)
    run_id = enqueue_one(store)

    assert claim(store) == []
    tick(store)
    resume(store)
    tick(store)
    assert claimed_ids(store) == [run_id]


def test_a_run_that_becomes_due_in_a_paused_queue_waits(store, worker, clock):
    run_id = enqueue_one(store, delay_seconds=10)
    pause(store)
    clock.advance(10)
    tick(store)

    assert claim(store) == []
    resume(store)
    tick(store)
    assert claimed_ids(store) == [run_id]


def test_a_pause_does_not_make_a_delayed_run_start_early(store, worker, clock):
    enqueue_one(store, delay_seconds=10)
    pause(store)
    tick(store)
    resume(store)
    tick(store)

    assert claim(store) == []


def test_a_running_run_of_a_paused_queue_ends_as_usual(store, worker):
    found = enqueue_and_claim(store)
    pause(store)
    tick(store)

    assert state_of(store, found.run_id) == "running"
    succeed(store, found)
    assert state_of(store, found.run_id) == "succeeded"


def test_a_run_handed_back_to_a_paused_queue_waits(store, worker):
    found = enqueue_and_claim(store)
    pause(store)

    hand_back(store, found)

    assert claim(store) == []
    tick(store)
    assert run_of(store, found.run_id).parked == "paused"


def test_pausing_is_recorded(store):
    pause(store)
    resume(store)

    acts = store.list_audit_entries("queue default", 10)

    assert sorted((act.act, act.actor) for act in acts) == [("pause", ACTOR), ("resume", ACTOR)]


def test_one_resume_ends_a_pause_that_was_requested_twice(store, worker):
    run_id = enqueue_one(store)
    store.apply([pausing("default"), pausing("default")])

    resume(store)

    assert claimed_ids(store) == [run_id]


# -- tasks that no worker registers --


def test_a_tick_parks_the_runs_of_a_task_that_no_worker_registers(store):
    register(store, tasks=(OTHER_TASK,))
    unknown, known = enqueue_one(store, task=TASK), enqueue_one(store, task=OTHER_TASK)

    ticked = tick(store)

    assert ticked.parked == 1
    assert (run_of(store, unknown).parked, run_of(store, known).parked) == ("unregistered", None)
    assert claimed_ids(store, tasks=(TASK, OTHER_TASK)) == [known]


def test_without_a_worker_every_run_is_parked(store):
    enqueue_many(store, 3)

    assert tick(store).parked == 3


def test_a_worker_that_registers_a_task_returns_its_runs_to_the_queue(store):
    run_id = enqueue_one(store)
    tick(store)

    register(store)
    tick(store)

    assert run_of(store, run_id).parked is None
    assert claimed_ids(store) == [run_id]


@pytest.mark.parametrize("stopped", [False, True], ids=["dead", "stopped"])
def test_the_tasks_of_a_worker_that_is_not_live_do_not_count_as_registered(store, worker, stopped):
    run_id = enqueue_one(store)
    recover(store, stopped=stopped)

    tick(store)

    assert run_of(store, run_id).parked == "unregistered"


def test_a_run_may_be_parked_for_one_reason_after_another(store):
    run_id = enqueue_one(store)
    tick(store)
    pause(store)
    register(store, OTHER_WORKER)
    tick(store)
    while_paused = run_of(store, run_id).parked
    resume(store)
    recover(store, OTHER_WORKER)
    tick(store)
    while_unregistered = run_of(store, run_id).parked
    register(store)
    tick(store)

    assert (while_paused, while_unregistered) == ("paused", "unregistered")
    assert claimed_ids(store) == [run_id]


def test_queues_are_listed_with_the_numbers_of_their_runs(store, worker, clock):
    enqueue_many(store, 2, queue="busy")
    claim(store, 1)
    enqueue_one(store, queue="busy", delay_seconds=60)
    enqueue_many(store, 3, queue="stopped")
    pause(store, "stopped")
    tick(store)
    pause(store, "empty")
    resume(store, "empty")

    records = [
        (record.name, record.paused, record.ready, record.waiting, record.running)
        for record in store.list_queues()
    ]

    assert records == [
        ("busy", False, 1, 1, 1),
        ("empty", False, 0, 0, 0),
        ("stopped", True, 0, 3, 0),
    ]


def test_runs_of_tasks_that_no_worker_registers_are_counted_by_queue(store, monkeypatch):
    register(store, tasks=(TASK,))
    enqueue_one(store)
    enqueue_many(store, 3, task=OTHER_TASK)
    enqueue_one(store, task=OTHER_TASK, queue="mail")
    tick(store)
    found = store.list_unregistered()
    monkeypatch.setattr("duly.store.inspector.COUNT_CAP", 1)

    assert found == [(OTHER_TASK, "default", 3), (OTHER_TASK, "mail", 1)]
    assert [lane.runs for lane in store.list_unregistered()] == [2, 1]
