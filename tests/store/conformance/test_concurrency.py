"""Many threads and several handles on one store at once: nothing is lost, doubled or unseen."""

import threading
from collections import Counter

import pytest

from duly.clock import new_id
from duly.store.ops.operators import Cancel
from duly.store.ops.runs import Settled
from duly.store.ops.updates import AddLogs, RestoreLogs
from duly.store.reads import RunFilter
from tests.store.conformance.verbs import (
    ACTOR,
    OTHER_WORKER,
    WORKER,
    accept,
    at_once,
    cancel,
    claim,
    claim_one,
    enqueue_many,
    enqueue_one,
    fail,
    key,
    listed_ids,
    order,
    outcomes_of,
    recover,
    redrive,
    register,
    run_of,
    succeed,
    success,
    tick,
    unstarted,
)

pytestmark = pytest.mark.pgbouncer

BOTH_WAYS = pytest.mark.parametrize("handles", ["shared", "own"])


def handles_for(count, store, open_another, handles):
    """Return one store for each thread: always the same, or a new one each, as in processes."""
    return [store if handles == "shared" else open_another() for _ in range(count)]


@BOTH_WAYS
def test_four_workers_claim_each_run_once(store, open_another, handles):
    ids = enqueue_many(store, 500)
    stores = handles_for(4, store, open_another, handles)

    def work(mine):
        worker, found = register(mine, new_id()), []
        while batch := claim(mine, 7, worker=worker):
            found += batch
        return worker, found

    results = at_once(*(lambda mine=mine: work(mine) for mine in stores))

    claims = [(found, worker) for worker, batch in results for found in batch]
    assert sorted(found.run_id for found, _ in claims) == ids
    assert {found.claim_number for found, _ in claims} == {1}
    for found, worker in claims[::25]:
        assert run_of(store, found.run_id).worker_id == worker


@BOTH_WAYS
def test_workers_that_settle_and_claim_in_one_call_run_each_run_once(store, open_another, handles):
    ids = enqueue_many(store, 300)
    stores = handles_for(3, store, open_another, handles)

    def work(mine):
        worker, done = register(mine, new_id()), []
        while batch := claim(mine, 5, worker=worker):
            answers = mine.apply([success(found) for found in batch])
            assert answers == [Settled.DONE] * len(batch)
            done += [found.run_id for found in batch]
        return done

    results = at_once(*(lambda mine=mine: work(mine) for mine in stores))

    assert sorted(run_id for done in results for run_id in done) == ids
    assert Counter(store.get_states(ids).values()) == {"succeeded": 300}


@BOTH_WAYS
def test_enqueues_of_twenty_threads_are_all_stored(store, open_another, handles):
    stores = [s for s in handles_for(4, store, open_another, handles) for _ in range(5)]

    results = at_once(*(lambda s=s: [enqueue_one(s) for _ in range(10)] for s in stores))

    assert sorted(listed_ids(store)) == sorted(run_id for ids in results for run_id in ids)


@BOTH_WAYS
def test_enqueues_of_twenty_threads_with_one_key_make_one_run(store, open_another, handles):
    stores = [s for s in handles_for(4, store, open_another, handles) for _ in range(5)]

    answers = at_once(*(lambda s=s: accept(s, key="k") for s in stores))

    assert sum(answer.new for answer in answers) == 1
    assert {answer.run_id for answer in answers} == set(listed_ids(store))
    assert len(listed_ids(store)) == 1


@BOTH_WAYS
def test_batches_with_the_same_keys_in_different_orders_do_not_block_each_other(
    store, open_another, handles
):
    keys = [f"key {number}" for number in range(30)]
    stores = handles_for(4, store, open_another, handles)
    batches = [
        [order(key=text) for text in (keys if place % 2 else reversed(keys))] for place in range(4)
    ]

    answers = at_once(*(lambda s=s, b=b: s.apply(b) for s, b in zip(stores, batches, strict=True)))

    assert sum(answer.new for batch in answers for answer in batch) == 30
    assert len(listed_ids(store)) == 30


@BOTH_WAYS
def test_log_lines_that_many_callers_restore_at_once_are_written_once(store, open_another, handles):
    register(store)
    enqueue_many(store, 1)
    (found,) = claim(store)
    lines = tuple((number, "info", f"line {number}") for number in range(50))
    store.do(AddLogs(found.run_id, found.claim_number, lines[:10]))
    op = RestoreLogs(found.run_id, found.claim_number, lines)
    stores = handles_for(8, store, open_another, handles)

    answers = at_once(*(lambda mine=mine: mine.apply([op]) for mine in stores))

    assert answers == [[True]] * 8
    assert [line.message for line in store.list_logs(found.run_id, 1000)] == [
        f"line {number}" for number in range(50)
    ]
    succeed(store, found)
    assert store.apply([op._replace(lines=((99, "info", "too late"),))]) == [False]


@BOTH_WAYS
def test_a_settle_and_a_recovery_at_once_end_each_attempt_once(store, open_another, handles):
    register(store)
    enqueue_many(store, 60)
    claims = claim(store)
    mine, theirs = handles_for(2, store, open_another, handles)

    def settle_all():
        return {found.run_id: succeed(mine, found) for found in claims}

    answers, recovered = at_once(settle_all, lambda: recover(theirs))

    done = {run_id for run_id, answer in answers.items() if answer is Settled.DONE}
    assert done.isdisjoint(recovered)
    assert done | set(recovered) == {found.run_id for found in claims}
    for found in claims:
        ended = "returned" if found.run_id in done else "lost"
        assert outcomes_of(store, found.run_id) == [(1, ended)]


@BOTH_WAYS
def test_a_claim_and_a_recovery_at_once_leave_no_run_with_the_dead_worker(
    store, open_another, handles
):
    mine, theirs = handles_for(2, store, open_another, handles)
    enqueue_many(store, 200)
    register(store)
    first_claimed = threading.Event()

    def claim_until_refused():
        taken = 0
        while batch := claim(mine, 3):
            taken += len(batch)
            first_claimed.set()
        return taken

    def declare_dead():
        first_claimed.wait()
        return recover(theirs, judge=unstarted)

    taken, recovered = at_once(claim_until_refused, declare_dead)

    assert taken >= len(recovered) > 0
    assert listed_ids(store, states=("running",)) == []


@BOTH_WAYS
def test_a_cancel_and_a_claim_at_once_agree_on_the_state(store, open_another, handles):
    register(store)
    ids = enqueue_many(store, 60)
    mine, theirs = handles_for(2, store, open_another, handles)

    def claim_all():
        found = []
        while batch := claim(mine, 4):
            found += batch
        return {claim.run_id for claim in found}

    def cancel_all():
        return {run_id: cancel(theirs, run_id) for run_id in ids}

    claimed, answers = at_once(claim_all, cancel_all)

    for run_id in ids:
        run = run_of(store, run_id)
        expected = ("requested", "running") if run_id in claimed else ("cancelled", "cancelled")
        assert (answers[run_id], run.state) == expected
        assert run.cancel_requested == (run_id in claimed)


@BOTH_WAYS
def test_concurrent_ticks_promote_each_run_once(store, open_another, clock, handles):
    register(store)
    ids = enqueue_many(store, 200, delay_seconds=10)
    clock.advance(10)
    stores = handles_for(3, store, open_another, handles)

    def tick_until_done(mine):
        promoted = 0
        while now := tick(mine, 9).promoted:
            promoted += now
        return promoted

    results = at_once(*(lambda mine=mine: tick_until_done(mine) for mine in stores))
    rest = tick_until_done(store)

    assert sum(results) + rest == 200
    assert sorted(listed_ids(store)) == ids
    assert sorted(found.run_id for found in claim(store)) == ids


def test_a_read_finds_a_run_while_it_moves_between_tables(store, open_another):
    reader = open_another()
    register(store)
    run_id = enqueue_one(store, key=key("k", ttl_seconds=None), delay_seconds=0)
    stop = threading.Event()
    started = threading.Barrier(2)

    def move_between_tables():
        started.wait()
        try:
            for _ in range(20):
                fail(store, claim_one(store))
                redrive(store, run_id)
                tick(store)
        finally:
            stop.set()

    def look():
        started.wait()
        looks = 0
        while not stop.is_set():
            assert reader.get_run(run_id) is not None
            assert run_id in reader.get_states([run_id])
            assert [run.id for run in reader.list_runs(RunFilter())] == [run_id]
            looks += 1
        return looks

    _, looks = at_once(move_between_tables, look)

    assert looks > 0
    assert run_of(store, run_id).generation == 21


def test_a_caller_can_read_its_own_writes(store, open_another):
    """Reads of a handle always see its earlier writes, while other handles write."""
    stores = [store, open_another(), open_another()]

    def write_and_look(mine):
        for _ in range(15):
            run_id = enqueue_one(mine, delay_seconds=60)
            assert run_of(mine, run_id).state == "queued"
            mine.do(Cancel(run_id, ACTOR))
            assert run_of(mine, run_id).state == "cancelled"

    at_once(*(lambda mine=mine: write_and_look(mine) for mine in stores))

    assert len(listed_ids(store, states=("cancelled",))) == 45


def test_two_recoveries_at_once_take_each_run_once(store, open_another):
    register(store, WORKER)
    register(store, OTHER_WORKER)
    ids = enqueue_many(store, 40)
    claim(store)
    stores = [store, open_another()]

    answers = at_once(*(lambda mine=mine: recover(mine, judge=unstarted) for mine in stores))

    assert sorted(run_id for answer in answers for run_id in answer) == ids
    assert sorted(found.run_id for found in claim(store, worker=OTHER_WORKER)) == ids
