"""Old history is forgotten in bounded pieces, with all that hangs on it and nothing else."""

from duly.core.states import State
from duly.core.verdict import Finish
from duly.runtime.upkeep import Pruner
from duly.settings import WorkerSettings
from duly.store.ops import AddLogs, Prune
from tests.store.conformance.verbs import (
    DAY_SECONDS,
    HOUR_SECONDS,
    SECOND,
    cancel,
    claim_one,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    listed_ids,
    retry_now,
    settle,
    settle_op,
    succeed,
    tick,
)


def prune(store, older_than_seconds, limit=100):
    return store.apply([Prune(round(older_than_seconds * SECOND), limit)])[0]


def test_only_what_ended_long_enough_ago_is_forgotten(store, worker, clock):
    old = enqueue_and_succeed(store)
    clock.advance(2 * HOUR_SECONDS)
    young = enqueue_and_succeed(store)

    assert prune(store, HOUR_SECONDS) == 1

    assert store.get_run(old) is None
    assert listed_ids(store) == [young]


def test_what_ended_just_that_long_ago_is_kept(store, worker, clock):
    kept = enqueue_and_succeed(store)
    clock.advance(HOUR_SECONDS)

    assert prune(store, HOUR_SECONDS) == 0
    assert listed_ids(store) == [kept]


def test_workers_keep_dead_letters_for_longer_than_other_runs(store, worker, clock):
    pruner = Pruner(store, WorkerSettings())
    enqueue_and_succeed(store)
    cancel(store, enqueue_one(store))
    failed, held = enqueue_and_fail(store), enqueue_and_claim(store)
    settle(store, settle_op(held, "lost", Finish(State.INTERRUPTED, "crashed")))

    def left_after(days):
        clock.advance(days * DAY_SECONDS)
        pruner.tick()
        return set(listed_ids(store))

    assert len(left_after(7)) == 4
    assert left_after(1) == {failed, held.run_id}
    assert left_after(22) == {failed, held.run_id}
    assert left_after(1) == set()


def test_a_live_run_is_never_forgotten(store, worker, clock):
    running = enqueue_and_claim(store).run_id
    ready, waiting = enqueue_one(store), enqueue_one(store, delay_seconds=DAY_SECONDS * 100)
    clock.advance(10 * DAY_SECONDS)

    assert prune(store, 0) == 0

    assert set(listed_ids(store)) == {running, ready, waiting}


def test_every_final_state_is_forgotten(store, worker, clock):
    enqueue_and_succeed(store)
    enqueue_and_fail(store)
    cancel(store, enqueue_one(store))
    enqueue_one(store, expires_seconds=1)
    clock.advance(1)
    tick(store)
    clock.advance(1)

    assert prune(store, 0) == 4
    assert listed_ids(store) == []


def test_what_hangs_on_a_run_goes_with_it(store, worker, clock, tables):
    found = enqueue_and_claim(store, tags={"customer": "17"})
    store.apply([AddLogs(found.run_id, 1, ((clock.now(), "info", "hello"),))])
    retry_now(store, found)
    succeed(store, claim_one(store))
    clock.advance(1)

    prune(store, 0)

    rows = tables.everything()
    for name in ("duly_tags", "duly_logs", "duly_attempts", "duly_history"):
        assert rows[name] == []


def test_what_hangs_on_other_runs_stays(store, worker, clock):
    enqueue_and_succeed(store, tags={"customer": "17"})
    clock.advance(HOUR_SECONDS)
    kept = enqueue_and_claim(store, tags={"customer": "17"})
    store.apply([AddLogs(kept.run_id, 1, ((clock.now(), "info", "hello"),))])
    retry_now(store, kept)
    succeed(store, claim_one(store))

    prune(store, 60)

    assert listed_ids(store, tag=("customer", "17")) == [kept.run_id]
    assert len(store.list_logs(kept.run_id, 10)) == 1
    assert len(store.list_attempts(kept.run_id)) == 2


def test_pruning_is_bounded(store, worker, clock):
    for _ in range(5):
        enqueue_and_succeed(store)
    clock.advance(1)

    assert [prune(store, 0, limit=2) for _ in range(4)] == [2, 2, 1, 0]


def test_pruning_dead_letters_is_bounded_too(store, worker, clock):
    for _ in range(5):
        enqueue_and_fail(store)
    clock.advance(1)

    assert [prune(store, 0, limit=2) for _ in range(4)] == [2, 2, 1, 0]
