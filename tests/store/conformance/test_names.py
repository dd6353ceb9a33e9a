"""A task with aliases has one limit and one set of keys, for all names of its runs."""

import threading
from typing import Any

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.store.ops.runs import ClaimRuns, Want
from tests.store.conformance.verbs import (
    LANE,
    OTHER_TASK,
    TASK,
    TASKS,
    WORKER,
    accept,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_many,
    enqueue_one,
    key,
    order,
    redrive,
    succeed,
)

NAMES = {TASK: (TASK, OTHER_TASK), OTHER_TASK: (TASK, OTHER_TASK)}


def key_of(text: str, other: str, **options: Any) -> Any:
    return key(text, **options)._replace(other_names=(other,))


def claim(store: Any, capacity: int = 2) -> Any:
    limits = ClaimLimits({TASK: capacity, OTHER_TASK: capacity}, names=NAMES)
    return store.do(ClaimRuns(WORKER, (Want(None, LANE, 10),), TASKS, "", limits))


def test_runs_of_all_names_count_against_one_limit(store, worker):
    enqueue_many(store, 3, lane=limited_lane(LANE, TASK))
    enqueue_many(store, 3, task=OTHER_TASK, lane=limited_lane(LANE, OTHER_TASK))

    found = claim(store)

    assert len(found) == 2
    assert len(claim(store)) == 0
    succeed(store, found[0])
    assert len(claim(store)) == 1


def test_the_limit_of_a_key_counts_only_the_runs_of_that_key_under_all_names(store, worker):
    for name in TASKS:
        for tenant in ("a", "b"):
            enqueue_many(store, 2, task=name, lane=limited_lane(LANE, name, tenant))

    found = claim(store, capacity=1)

    assert len(found) == 2
    assert len(claim(store, capacity=1)) == 0


def test_a_key_that_is_in_force_under_another_name_is_found(store, worker):
    run_id = enqueue_and_succeed(store, task=TASK, key="k")

    again = accept(store, task=OTHER_TASK, key=key_of("k", TASK))
    other = accept(store, task=OTHER_TASK, key=key_of("k", TASK, fingerprint="print-2"))

    assert (again.run_id, again.new, again.conflict) == (run_id, False, False)
    assert (other.run_id, other.conflict) == (run_id, True)


def test_a_key_that_has_expired_under_another_name_is_free(store, worker, clock):
    enqueue_and_succeed(store, task=TASK, key=key("k", ttl_seconds=100.0))

    clock.advance(101)

    assert accept(store, task=OTHER_TASK, key=key_of("k", TASK)).new


def test_a_key_in_force_under_two_names_belongs_to_the_run_of_the_callers_name(store, worker):
    enqueue_one(store, task=TASK, key="k")
    own = enqueue_one(store, task=OTHER_TASK, key="k")

    assert accept(store, task=OTHER_TASK, key=key_of("k", TASK)).run_id == own


def test_a_run_is_not_queued_again_while_a_live_run_of_another_name_has_its_key(store, worker):
    failed = enqueue_and_fail(store, task=TASK, key=key("k", active_only=True))
    holder = enqueue_one(store, task=OTHER_TASK, key=key_of("k", TASK))

    assert redrive(store, failed, other_names=(OTHER_TASK,)).held_by == holder


def test_a_run_whose_retry_is_refused_does_not_get_its_key_back(store, worker):
    failed = enqueue_and_fail(store, task=TASK, key=key("k", active_only=True))
    holder = enqueue_one(store, task=OTHER_TASK, key="k")

    assert redrive(store, failed, other_names=(OTHER_TASK,)).held_by == holder

    later = accept(store, task=TASK, key="k")
    assert later.new
    assert later.run_id != failed


def test_a_batch_with_one_key_under_two_names_makes_one_run(store):
    ops = [
        order(task=TASK, key=key_of("k", OTHER_TASK)),
        order(task=OTHER_TASK, key=key_of("k", TASK)),
        order(task=OTHER_TASK, key=key_of("k", TASK, fingerprint="print-2")),
    ]

    answers = store.apply(ops)

    assert [answer.run_id for answer in answers] == [ops[0].run_id] * 3
    assert [answer.new for answer in answers] == [True, False, False]
    assert [answer.conflict for answer in answers] == [False, False, True]


def test_a_run_that_ends_releases_its_key_under_all_names(store, worker, clock):
    options = {"ttl_seconds": 100.0}
    run_id = enqueue_and_succeed(store, task=TASK, key=key_of("k", OTHER_TASK, **options))
    before = accept(store, task=OTHER_TASK, key=key_of("k", TASK))

    clock.advance(101)

    assert before.run_id == run_id
    assert accept(store, task=OTHER_TASK, key=key_of("k", TASK)).new
    assert not accept(store, task=TASK, key=key_of("k", OTHER_TASK)).new


def test_concurrent_enqueues_with_one_key_under_two_names_make_one_run(store, open_another):
    def enqueue(where: Any, name: str, other: str) -> None:
        start.wait(20)
        ops = [order(task=name, key=key_of(str(number), other)) for number in range(50)]
        answers[name] = [where.do(op) for op in ops]

    answers: dict[str, Any] = {}
    start = threading.Barrier(2)
    threads = [
        threading.Thread(target=enqueue, args=(store, TASK, OTHER_TASK)),
        threading.Thread(target=enqueue, args=(open_another(), OTHER_TASK, TASK)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    both = list(zip(answers[TASK], answers[OTHER_TASK], strict=True))
    assert all(first.run_id == second.run_id for first, second in both)
    assert all(first.new != second.new for first, second in both)
