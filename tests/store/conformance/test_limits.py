"""Limits on concurrent runs, over all workers: of queues, of tasks and of their keys."""

import random

import pytest

from duly.core.concurrency_limits import ClaimLimits, LimitScan, limited_lane
from duly.core.states import SlotKind
from duly.limits import LIMITS_BATCH
from duly.store.ops.operators import LimitQueue
from duly.store.ops.runs import ClaimRuns, Settled, Want
from tests.integrations.evidence import SCALE
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    OTHER_TASK,
    OTHER_WORKER,
    TASK,
    TASKS,
    WORKER,
    at_once,
    cancel,
    claim_one,
    enqueue_many,
    enqueue_one,
    hand_back,
    lost,
    order,
    pause,
    recover,
    redrive,
    register,
    retry_now,
    run_of,
    succeed,
    tick,
)

LIMITED = limited_lane(LANE, TASK)


def limit_queue(store, limit, queue="default"):
    """Set or remove the limit of a queue."""
    store.do(LimitQueue(queue, limit, ACTOR))


def claim(
    store,
    limit=100,
    *,
    worker=WORKER,
    capacity=2,
    wants=None,
    after="",
    tasks=TASKS,
    first=False,
):
    """Claim ready runs of a task that has this limit."""
    capacities = {} if capacity is None else {TASK: capacity}
    asked = wants or (Want(None, LANE, limit),)
    limits = ClaimLimits(capacities, after, first)
    return store.do(ClaimRuns(worker, asked, tasks, "", limits))


def running(store):
    return sum(queue.running for queue in store.list_queues())


# -- of queues --


def test_a_queue_has_no_more_running_runs_than_its_limit(store, worker):
    limit_queue(store, 3)
    enqueue_many(store, 10)

    first, second = claim(store), claim(store)

    assert (len(first), len(second), running(store)) == (3, 0, 3)
    assert succeed(store, first[0]) is Settled.DONE
    assert len(claim(store)) == 1


def test_a_claim_that_does_not_read_limits_takes_nothing_beyond_them(store, worker):
    limit_queue(store, 3)
    enqueue_many(store, 10)
    op = ClaimRuns(WORKER, (Want(None, LANE, 100),), TASKS)

    assert sum(len(store.do(op)) for _ in range(3)) <= 3


def test_the_limit_of_a_queue_does_not_affect_other_queues(store, worker):
    limit_queue(store, 1, "slow")
    enqueue_many(store, 3, queue="slow")
    enqueue_many(store, 3, queue="fast")

    found = sorted(claim.queue for claim in claim(store))

    assert found == ["fast", "fast", "fast", "slow"]


def test_a_limit_can_be_changed_and_removed_and_is_listed(store, worker):
    enqueue_many(store, 10)
    limit_queue(store, 1)
    assert len(claim(store)) == 1
    limit_queue(store, 4)
    assert len(claim(store)) == 3
    assert store.list_queues()[0].limit == 4
    limit_queue(store, None)

    assert len(claim(store)) == 6
    assert store.list_queues()[0].limit is None
    acts = [act.act for act in store.list_audit_entries("queue default", 5)]
    assert acts == ["lift limit", "limit to 4", "limit to 1"]


def test_a_paused_queue_with_a_limit_starts_nothing(store, worker):
    limit_queue(store, 3)
    pause(store)
    enqueue_many(store, 3)
    enqueue_many(store, 3, lane=LIMITED)

    assert claim(store) == []


# -- of tasks and keys --


def test_a_task_has_no_more_running_runs_than_its_limit(store, worker):
    enqueue_many(store, 5, lane=LIMITED)
    enqueue_many(store, 3, task=OTHER_TASK)

    first, second = claim(store), claim(store)

    assert sorted(claim.task for claim in first) == sorted([TASK] * 2 + [OTHER_TASK] * 3)
    assert second == []
    assert second.limit == LIMITED
    mine = [claim for claim in first if claim.task == TASK]
    succeed(store, mine[0])
    assert len(claim(store)) == 1


def test_urgent_and_older_runs_are_claimed_first(store, worker):
    old, young = enqueue_many(store, 2, lane=LIMITED)
    urgent = enqueue_one(store, lane=LIMITED, priority=5)

    assert [each.run_id for each in claim(store)] == [urgent, old]
    assert run_of(store, young).state == "queued"


def test_each_key_has_a_limit_of_its_own(store, worker):
    for tenant in ("ann", "bob cat", "~", "ünï"):
        enqueue_many(store, 5, lane=limited_lane(LANE, TASK, tenant))

    found = claim(store)

    assert len(found) == 8
    assert len({claim.lane for claim in found}) == 4
    assert claim(store) == []


def test_many_full_keys_do_not_starve_others(store, worker):
    tenants = [limited_lane(LANE, TASK, f"t{number:03}") for number in range(120)]
    for lane in tenants:
        enqueue_many(store, 2, lane=lane)

    taken, after = [], ""
    for _ in range(3):
        found = claim(store, 1000, capacity=1, after=after)
        taken += found
        after = found.limit

    assert sorted(claim.lane for claim in taken) == tenants


@pytest.mark.parametrize("count", [99, 100, 200, 250])
@pytest.mark.parametrize("start", ["", "t000", "t0505", "t120", "z"])
def test_claims_visit_all_limits_from_any_starting_point(store, worker, count, start):
    lanes = [limited_lane(LANE, TASK, f"t{number:03}") for number in range(count)]
    store.apply([order(lane=lane, queue=of) for lane in lanes for of in ("default", "theirs")])
    after = limited_lane(LANE, TASK, start) if start else ""

    left, found, looks = LimitScan(after), [], 0
    while left is not None:
        looks += 1
        seen = claim(store, capacity=1, after=after, wants=(Want("default", LANE, 1000),))
        found += seen
        left = left.remaining(after, seen.limit) if seen.has_more_limits else None
        after = seen.limit

    assert sorted(claim.lane for claim in found) == lanes
    assert looks <= 2 + count // LIMITS_BATCH


def test_a_peek_reports_ready_runs_under_limits_of_tasks(store, worker):
    assert not store.peek().limited
    enqueue_one(store)
    assert not store.peek().limited
    enqueue_many(store, 2, lane=LIMITED)
    assert store.peek().limited
    claim(store, capacity=2)

    assert not store.peek().limited


def test_the_kind_of_run_that_is_claimed_first_gets_the_free_places(store, worker):
    limit_queue(store, 3, "slow")
    enqueue_many(store, 5)
    enqueue_many(store, 5, lane=LIMITED)

    limited_first = [each.lane for each in claim(store, 3, first=True)]
    plain_first = [each.lane for each in claim(store, 3)]

    assert sorted(limited_first) == sorted([LANE, LIMITED, LIMITED])
    assert plain_first == [LANE] * 3


def test_slots_of_both_kinds_count_against_one_limit(store, worker):
    enqueue_many(store, 2, lane=LIMITED)
    enqueue_many(store, 2, lane=limited_lane(SlotKind.LOOP, TASK))
    wants = (Want(None, LANE, 10), Want(None, SlotKind.LOOP, 10))

    assert len(claim(store, wants=wants, capacity=3)) == 3
    assert claim(store, wants=wants, capacity=3) == []


def test_a_worker_claims_no_more_than_its_capacity_and_only_runs_of_its_tasks(store, worker):
    enqueue_many(store, 5, lane=LIMITED)

    assert len(claim(store, 1, capacity=4)) == 1
    assert claim(store, tasks=(OTHER_TASK,), capacity=4) == []
    assert claim(store, wants=(Want("mail", LANE, 5),), capacity=4) == []
    assert claim(store, wants=(Want(None, SlotKind.LOOP, 5),), capacity=4) == []
    assert len(claim(store, wants=(Want("default", LANE, 5),), capacity=4)) == 3


def test_a_task_that_has_lost_its_limit_runs_what_waited_for_the_limit(store, worker):
    enqueue_many(store, 5, lane=LIMITED)

    assert len(claim(store, capacity=None)) == 5


def test_limits_of_a_task_and_of_its_queue_apply_together(store, worker):
    limit_queue(store, 3)
    enqueue_many(store, 9, lane=LIMITED)
    enqueue_many(store, 9, task=OTHER_TASK)
    enqueue_many(store, 9, lane=LIMITED, queue="other")

    for _ in range(3):
        claim(store, capacity=2)

    held = [store.get_run(run.id) for run in store.list_runs(_running())]
    assert sum(run.queue == "default" for run in held) == 3
    assert sum(run.task == TASK for run in held) == 2


def _running():
    from duly.store.reads import RunFilter  # noqa: PLC0415 - used here only

    return RunFilter(states=("running",), limit=100)


def test_every_end_of_an_attempt_frees_its_place(store, worker):
    register(store, OTHER_WORKER)
    enqueue_many(store, 20, lane=LIMITED)

    def held():
        (only,) = claim(store, capacity=1)
        return only

    succeed(store, held())
    hand_back(store, held())
    retry_now(store, held())
    (theirs,) = claim(store, capacity=1, worker=OTHER_WORKER)
    assert claim(store, capacity=1) == []
    recover(store, OTHER_WORKER)
    assert run_of(store, theirs.run_id).lane == LIMITED
    cancel(store, held().run_id)

    assert claim(store, capacity=1) == []


def test_a_run_that_is_lost_again_stays_under_its_limit_and_the_loss_is_counted(store, worker):
    run_id = enqueue_one(store, lane=LIMITED)
    for number in range(3):
        worker = register(store, f"00000000-0000-7000-8000-00000000000{number}")
        claim(store, worker=worker)
        recover(store, worker, lost)

    assert run_of(store, run_id).state == "failed"
    assert run_of(store, run_id).lane == LIMITED


def test_redriven_and_delayed_runs_wait_under_their_limit(store, worker, clock):
    delayed = enqueue_one(store, lane=LIMITED, delay_seconds=60)
    failed = enqueue_one(store, lane=LIMITED)
    cancel(store, failed)
    redrive(store, failed)
    clock.advance(60)
    tick(store)

    assert {run_of(store, run_id).lane for run_id in (delayed, failed)} == {LIMITED}
    assert len(claim(store, capacity=1)) == 1


def test_plain_claims_do_not_read_limited_runs(store, worker, tables):
    enqueue_many(store, 50, lane=limited_lane(LANE, TASK, "many"))
    enqueue_one(store)

    lanes = tables.rows("SELECT queue, lane FROM duly_ready_lanes")

    assert claim_one(store).lane == LANE
    assert len([lane for _, lane in lanes if lane.startswith("~")]) <= 1


def test_a_dead_worker_claims_no_limited_run(store, worker):
    enqueue_many(store, 5, lane=LIMITED)
    limit_queue(store, 2, "slow")
    enqueue_many(store, 5, queue="slow")
    recover(store)

    assert claim(store) == []


@pytest.mark.scaled
@pytest.mark.parametrize("of", ["task", "queue"])
def test_racing_workers_never_exceed_a_limit_while_some_of_them_die(store, open_another, of):
    capacity, claimers = 5, 64 if SCALE > 1 else 12
    stores = [open_another() for _ in range(8)]
    if of == "queue":
        limit_queue(store, capacity)
    enqueue_many(store, 120, lane=LIMITED if of == "task" else LANE)
    exceeded = []

    def race(number):
        mine = stores[number % len(stores)]
        draw = random.Random(number)  # noqa: S311 - a seeded choice
        for turn in range(3):
            worker = f"00000000-0000-7000-8000-{number:06}{turn:06}"
            register(mine, worker)
            found = claim(mine, 3, worker=worker, capacity=capacity)
            count = running(mine)
            if count > capacity:
                exceeded.append(count)
            if draw.random() < 0.5:
                recover(mine, worker, lost)
            else:
                for each in found:
                    succeed(mine, each)

    at_once(*(lambda number=number: race(number) for number in range(claimers)))

    assert exceeded == []
    assert running(store) == 0
    register(store)
    assert len(claim(store, capacity=capacity)) in {0, 1, 2, 3, 4, 5}
