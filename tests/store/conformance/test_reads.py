"""Reads of single records, and the types that they return on every database."""

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.record import LimitHolder
from duly.store.ops.operators import LimitQueue
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.steps import BeginStep
from duly.store.reads import RunFilter
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    OTHER_TASK,
    OTHER_WORKER,
    TASK,
    TASKS,
    UNKNOWN_RUN,
    WORKER,
    cancel,
    claim_one,
    enqueue_and_claim,
    enqueue_and_succeed,
    enqueue_one,
    pause,
    register,
    resume,
    retry_now,
    run_of,
)


def test_a_text_that_is_no_run_id_finds_no_run(store):
    enqueue_one(store)
    which = RunFilter(before="no run", scan=1)

    assert store.get_run("no run") is None
    assert store.get_states(["no run"]) == store.first_starts(["no run"]) == {}
    assert store.list_attempts("no run") == store.list_steps("no run") == []
    assert store.list_logs("no run", 10) == []
    assert store.list_runs(which) == []
    assert store.reach_of(which) is None


def test_the_flags_of_records_are_booleans_on_every_database(store, worker):
    found = enqueue_and_claim(store)
    enqueue_one(store)
    cancel(store, found.run_id)
    store.do(BeginStep(found.run_id, found.claim_number, "pay", "step"))
    pause(store, "stopped")

    flags = [
        run_of(store, found.run_id).cancel_requested,
        *(step.done for step in store.list_steps(found.run_id)),
        *(queue.paused for queue in store.list_queues()),
        *(value for value in store.peek() if value in {0, 1}),
    ]

    assert {type(flag) for flag in flags} == {bool}
    assert flags[:4] == [True, False, False, True]


def test_runs_are_found_by_their_key_in_every_task(store):
    mail = enqueue_one(store, key="order-1")
    bill = enqueue_one(store, task=OTHER_TASK, key="order-1")
    enqueue_one(store, key="order-2")

    assert sorted(store.find_by_key("order-1")) == [mail, bill]
    assert store.find_by_key("order-3") == []


def test_a_queue_is_paused_until_it_is_resumed(store):
    before = store.is_paused("default")
    pause(store)
    during = store.is_paused("default")
    resume(store)

    assert (before, during, store.is_paused("default")) == (False, True, False)


def test_a_worker_is_found_by_its_id(store, worker):
    register(store, OTHER_WORKER)

    found = store.get_worker(worker)

    assert (found.id, found.state, found.host, found.running) == (worker, "live", "host", 0)
    assert found in store.list_workers()
    assert store.get_worker(UNKNOWN_RUN) is None


def test_the_first_start_is_the_start_of_the_first_attempt_of_a_generation(store, worker, clock):
    once = enqueue_and_succeed(store)
    run_id = enqueue_one(store)
    for _ in range(2):
        retry_now(store, claim_one(store))
        clock.advance(5)

    starts = store.first_starts([run_id, once, UNKNOWN_RUN])

    first, second = store.list_attempts(run_id)
    assert first.started_at < second.started_at
    assert starts == {run_id: first.started_at}


def test_the_holders_of_a_limit_are_the_running_runs_that_count_against_it(store, worker):
    lane = limited_lane(LANE, TASK)
    store.do(LimitQueue("mail", 2, ACTOR))
    of_task = enqueue_one(store, lane=lane)
    of_queue = enqueue_one(store, queue="mail")
    of_key = enqueue_one(store, lane=limited_lane(LANE, TASK, "ann"))
    store.do(ClaimRuns(WORKER, (Want(None, LANE, 9),), TASKS, "", ClaimLimits({TASK: 1})))
    in_both = run_of(store, enqueue_one(store, lane=lane, queue="mail"))
    in_none = run_of(store, enqueue_one(store))
    keyed = run_of(store, enqueue_one(store, lane=limited_lane(LANE, TASK, "ann")))

    assert store.list_holders(in_both) == [
        LimitHolder("queue", 2, of_queue, WORKER),
        LimitHolder("task", None, of_task, WORKER),
    ]
    assert store.list_holders(keyed) == [LimitHolder("task", None, of_key, WORKER)]
    assert store.list_holders(in_none) == []


def test_runs_of_every_name_of_a_task_count_against_its_limit(store, worker):
    of_task = enqueue_one(store, lane=limited_lane(LANE, TASK))
    renamed = enqueue_one(store, task=OTHER_TASK, lane=limited_lane(LANE, OTHER_TASK))
    limits = ClaimLimits({TASK: 1, OTHER_TASK: 1})
    store.do(ClaimRuns(WORKER, (Want(None, LANE, 9),), TASKS, "", limits))
    waiting = run_of(store, enqueue_one(store, lane=limited_lane(LANE, TASK)))

    holders = store.list_holders(waiting, (OTHER_TASK,))

    assert {holder.run_id for holder in holders} == {of_task, renamed}
