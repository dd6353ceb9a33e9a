"""A run is stored by an enqueue and taken by a claim, once each and in order."""

import json

import pytest

from duly.clock import new_id
from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.store.ops.operators import LimitQueue
from duly.store.ops.runs import ClaimRuns, Settled, Want
from tests.store.conformance.verbs import (
    LANE,
    OTHER_TASK,
    OTHER_WORKER,
    SECOND,
    TASK,
    TASKS,
    WORKER,
    accept,
    claim,
    claim_one,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    hand_back,
    order,
    recover,
    register,
    retry_now,
    run_of,
    state_of,
)

pytestmark = pytest.mark.pgbouncer

AWKWARD = '[[],{"text":"Zürich \\"→\\" \\\\ 𝄞 %s %(x)s :name ? $1 \'; --"}]'


def test_an_accepted_run_is_queued_with_all_its_fields(store, clock):
    run_id = new_id()

    answer = accept(
        store,
        run_id=run_id,
        task=TASK,
        queue="mail",
        lane="process",
        priority=7,
        arguments=AWKWARD,
        expires_seconds=60,
        tags={"customer": "17"},
        key="order 17",
    )

    now = clock.now()
    run = run_of(store, run_id)
    assert answer == (run_id, True, False)
    assert (run.id, run.task, run.queue, run.lane) == (run_id, TASK, "mail", "process")
    assert (run.state, run.cause, run.parked) == ("queued", None, None)
    assert (run.priority, run.arguments, run.key) == (7, AWKWARD, "order 17")
    assert json.loads(run.tags) == {"customer": "17"}
    assert (run.created_at, run.due_at, run.expires_at) == (now, now, now + 60 * SECOND)
    assert (run.generation, run.claim_number, run.attempt) == (1, 0, 1)
    assert (run.retries_used, run.crashes, run.cancel_requested) == (0, 0, False)
    assert (run.worker_id, run.claimed_at, run.finished_at) == (None, None, None)
    assert (run.result, run.error, run.traceback, run.fingerprint) == (None, None, None, None)
    assert (run.progress, run.progress_text) == (None, None)


def test_a_claim_contains_everything_that_its_body_needs(store, worker, clock):
    run_id = enqueue_one(
        store, priority=7, arguments=AWKWARD, tags={"customer": "17"}, key="order 17"
    )

    found = claim_one(store)

    assert (found.run_id, found.claim_number) == (run_id, 1)
    assert (found.task, found.queue, found.lane, found.priority) == (TASK, "default", LANE, 7)
    assert (found.due_at, found.attempt, found.generation) == (clock.now(), 1, 1)
    assert (found.retries_used, found.crashes) == (0, 0)
    assert found.keyed
    assert json.loads(found.tags) == {"customer": "17"}
    assert found.arguments == AWKWARD


def test_a_claim_of_a_run_without_key_or_tags_has_neither(store, worker):
    found = enqueue_and_claim(store)

    assert not found.keyed
    assert found.tags is None


def test_a_claimed_run_is_running_under_its_worker(store, worker, clock):
    found = enqueue_and_claim(store)

    run = run_of(store, found.run_id)
    assert (run.state, run.worker_id, run.claim_number) == ("running", WORKER, 1)
    assert clock.now() <= run.claimed_at <= clock.now() + SECOND


def test_a_claimed_run_is_not_claimed_again(store, worker):
    enqueue_and_claim(store)
    register(store, OTHER_WORKER)

    assert claim(store) == []
    assert claim(store, worker=OTHER_WORKER) == []


def test_a_claim_of_an_empty_store_returns_nothing(store, worker):
    assert claim(store) == []


def test_a_worker_that_never_registered_claims_nothing(store):
    run_id = enqueue_one(store)

    assert claim(store) == []
    assert state_of(store, run_id) == "queued"


@pytest.mark.parametrize("stopped", [False, True], ids=["dead", "stopped"])
def test_a_worker_that_is_no_longer_live_claims_nothing(store, worker, stopped):
    recover(store, stopped=stopped)
    run_id = enqueue_one(store)

    assert claim(store) == []
    assert state_of(store, run_id) == "queued"


def test_a_dead_worker_cannot_register_itself_alive_again(store, worker):
    recover(store)
    enqueue_one(store)

    register(store)

    assert claim(store) == []


def test_the_claim_number_grows_by_one_at_every_claim(store, worker):
    first = enqueue_and_claim(store)
    retry_now(store, first)
    second = claim_one(store)
    hand_back(store, second)
    third = claim_one(store)

    assert [c.claim_number for c in (first, second, third)] == [1, 2, 3]


def test_runs_of_a_queue_are_ordered_by_priority_then_due_time_then_age(store, worker, clock):
    now = clock.now()
    last = enqueue_one(store, priority=-1, at=now - 9 * SECOND)
    fourth = enqueue_one(store, at=now)
    fifth = enqueue_one(store, at=now)
    third = enqueue_one(store, at=now - 1 * SECOND)
    second = enqueue_one(store, priority=5, at=now)
    first = enqueue_one(store, priority=5, at=now - 1 * SECOND)

    one_by_one = [claim_one(store, limit=1).run_id for _ in range(6)]

    assert one_by_one == [first, second, third, fourth, fifth, last]


def test_a_claim_of_several_runs_returns_them_in_that_order_too(store, worker, clock):
    now = clock.now()
    third = enqueue_one(store, at=now)
    second = enqueue_one(store, at=now - 1 * SECOND)
    first = enqueue_one(store, priority=5, at=now)
    fourth = enqueue_one(store, at=now)

    assert claimed_ids(store) == [first, second, third, fourth]


def test_a_run_that_is_retried_at_once_keeps_its_place(store, worker, clock):
    first = enqueue_and_claim(store)
    clock.advance(1)
    second = enqueue_one(store)

    assert retry_now(store, first) is Settled.DONE

    assert claimed_ids(store) == [first.run_id, second]


def test_claims_take_the_queues_in_turn_starting_after_the_last_one(store, worker):
    for queue in ("a", "b", "c"):
        enqueue_many(store, 3, queue=queue)

    def next_queue(after):
        return claim_one(store, limit=1, after_queue=after).queue

    assert [next_queue(""), next_queue("a"), next_queue("b"), next_queue("c")] == list("abca")


def test_a_full_queue_starves_no_other(store, worker):
    enqueue_many(store, 500, queue="full")
    lonely = {enqueue_one(store, queue="a"), enqueue_one(store, queue="z", priority=-100)}
    seen, after = set(), ""

    for _ in range(3):
        found = claim(store, 50, after_queue=after)
        seen |= {claim.run_id for claim in found}
        after = found[-1].queue

    assert lonely <= seen


def test_a_claim_fills_the_room_that_one_queue_leaves_from_the_next_queue(store, worker):
    enqueue_many(store, 2, queue="a")
    enqueue_many(store, 5, queue="b")

    found = claim(store, 4)

    assert sorted(claim.queue for claim in found) == ["a", "a", "b", "b"]


def test_a_claim_may_name_its_queue(store, worker):
    enqueue_one(store, queue="a")
    wanted = enqueue_one(store, queue="b")

    assert claimed_ids(store, queue="b") == [wanted]
    assert claimed_ids(store, queue="nowhere") == []


def test_a_claim_takes_no_more_runs_than_it_wants(store, worker):
    enqueue_many(store, 5)

    assert [len(claim(store, limit)) for limit in (0, 2, 2, 2)] == [0, 2, 2, 1]


def test_a_claim_takes_only_from_its_lane(store, worker):
    enqueue_one(store, lane="process")
    wanted = enqueue_one(store, lane="loop")

    assert claimed_ids(store, lane="loop") == [wanted]


def test_every_want_of_a_claim_has_its_own_lane_and_limit(store, worker):
    for lane in ("loop", "thread", "process"):
        enqueue_many(store, 5, lane=lane)
    wants = (Want(None, "loop", 3), Want("default", "process", 1), Want(None, "suspect", 9))

    found = store.do(ClaimRuns(WORKER, wants, TASKS))

    assert sorted(claim.lane for claim in found) == ["loop", "loop", "loop", "process"]


def test_a_claim_takes_nothing_from_excluded_queues(store, worker):
    enqueue_many(store, 5, queue="slow", priority=1)
    wanted = [enqueue_one(store, queue="mail"), enqueue_one(store, queue="default")]
    op = ClaimRuns(WORKER, (Want(None, LANE, 9),), TASKS, excluded=("slow", "other"))

    found = store.do(op)

    assert sorted(claim.run_id for claim in found) == sorted(wanted)


def test_a_claim_under_limits_takes_nothing_from_excluded_queues(store, worker):
    store.apply([LimitQueue("slow", 5, "ada"), LimitQueue("mail", 5, "ada")])
    lane = limited_lane(LANE, TASK)
    enqueue_many(store, 3, queue="slow")
    enqueue_many(store, 3, queue="slow", lane=lane)
    wanted = [
        enqueue_one(store, queue="mail"),
        enqueue_one(store, queue="mail", lane=lane),
        enqueue_one(store, queue="default", lane=lane),
    ]
    limits = ClaimLimits({TASK: 9})
    op = ClaimRuns(WORKER, (Want(None, LANE, 9),), TASKS, limits=limits, excluded=("slow",))

    found = store.do(op)

    assert sorted(claim.run_id for claim in found) == sorted(wanted)


def test_a_claim_skips_runs_of_tasks_that_it_does_not_name(store, worker):
    enqueue_many(store, 20, task=OTHER_TASK, priority=1)
    wanted = enqueue_many(store, 2, task=TASK)

    assert claimed_ids(store, 2, tasks=(TASK,)) == wanted


def test_a_claim_for_no_task_takes_nothing(store, worker):
    enqueue_one(store)

    assert claim(store, tasks=()) == []


@pytest.mark.parametrize("count", [1, 9, 10, 11, 99, 100, 101, 111, 234, 1000])
def test_a_batch_of_any_size_is_enqueued_and_claimed_whole(store, worker, count):
    ids = enqueue_many(store, count)

    assert claimed_ids(store, count + 1) == ids


def test_two_claims_in_one_call_share_nothing(store, worker):
    register(store, OTHER_WORKER)
    ids = enqueue_many(store, 5)
    wants = (Want(None, LANE, 3),)

    mine, theirs = store.apply(
        [ClaimRuns(WORKER, wants, TASKS), ClaimRuns(OTHER_WORKER, wants, TASKS)]
    )

    assert sorted(claim.run_id for claim in mine + theirs) == ids
    assert {run_of(store, claim.run_id).worker_id for claim in theirs} == {OTHER_WORKER}


def test_a_run_can_be_claimed_by_the_call_that_enqueues_it(store, worker):
    op = order()

    _, found = store.apply([op, ClaimRuns(WORKER, (Want(None, LANE, 1),), TASKS)])

    assert [claim.run_id for claim in found] == [op.run_id]
