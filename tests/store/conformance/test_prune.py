"""Old history is deleted in bounded pieces, with everything that belongs to it and nothing else."""

import json

import pytest

from duly.core.amounts import FOREVER
from duly.core.states import PARENT_TAG, State
from duly.core.verdict import Finish
from duly.settings import WorkerSettings
from duly.store.ops.operators import RecordAuditEntry
from duly.store.ops.steps import SendEvent
from duly.store.ops.updates import AddLogs
from duly.store.ops.upkeep import Prune, RegisterWorker
from duly.worker.services import pruner
from duly.worker.services.pruner import Pruner
from tests.store.conformance.verbs import (
    DAY_SECONDS,
    HOUR_SECONDS,
    OTHER_TASK,
    SECOND,
    TASK,
    TASKS,
    WORKER,
    cancel,
    claim_one,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    fail,
    key,
    listed_ids,
    redrive,
    retry_later,
    retry_now,
    settle,
    settle_op,
    succeed,
    tick,
)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    """Workers prune whenever a test has them tick, though one of them did so just now."""
    monkeypatch.setattr(pruner, "_PRUNE_PAUSE", 0.0)


def prune(store, older_than_seconds, limit=100):
    return store.do(Prune(round(older_than_seconds * SECOND), limit)).runs


def test_only_runs_that_ended_long_enough_ago_are_pruned(store, worker, clock):
    old = enqueue_and_succeed(store)
    clock.advance(2 * HOUR_SECONDS)
    young = enqueue_and_succeed(store)

    assert prune(store, HOUR_SECONDS) == 1

    assert store.get_run(old) is None
    assert listed_ids(store) == [young]


def test_a_run_that_ended_exactly_that_long_ago_is_kept(store, worker, clock):
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


def test_a_live_run_is_never_pruned(store, worker, clock):
    running = enqueue_and_claim(store).run_id
    ready, waiting = enqueue_one(store), enqueue_one(store, delay_seconds=DAY_SECONDS * 100)
    clock.advance(10 * DAY_SECONDS)

    assert prune(store, 0) == 0

    assert set(listed_ids(store)) == {running, ready, waiting}


def test_runs_of_every_final_state_are_pruned(store, worker, clock):
    enqueue_and_succeed(store)
    enqueue_and_fail(store)
    cancel(store, enqueue_one(store))
    enqueue_one(store, expires_seconds=1)
    clock.advance(1)
    tick(store)
    clock.advance(1)

    assert prune(store, 0) == 4
    assert listed_ids(store) == []


def test_the_records_of_a_run_are_pruned_with_it(store, worker, clock, tables):
    found = enqueue_and_claim(store, tags={"customer": "17"})
    store.do(AddLogs(found.run_id, 1, ((clock.now(), "info", "hello"),)))
    retry_now(store, found)
    succeed(store, claim_one(store))
    clock.advance(1)

    prune(store, 0)

    rows = tables.everything()
    for name in ("duly_tags", "duly_logs", "duly_attempts", "duly_history"):
        assert rows[name] == []


@pytest.mark.parametrize("tags", ["[1]", "7"])
def test_a_run_with_damaged_tags_is_pruned_with_the_others(store, worker, clock, tables, tags):
    enqueue_and_succeed(store)
    damaged = enqueue_and_succeed(store)
    tables.execute(f"UPDATE duly_history SET tags = '{tags}' WHERE id = '{damaged}'")  # noqa: S608 - ours
    clock.advance(2 * HOUR_SECONDS)

    assert prune(store, HOUR_SECONDS) == 2


def test_the_records_of_other_runs_are_kept(store, worker, clock):
    enqueue_and_succeed(store, tags={"customer": "17"})
    clock.advance(HOUR_SECONDS)
    kept = enqueue_and_claim(store, tags={"customer": "17"})
    store.do(AddLogs(kept.run_id, 1, ((clock.now(), "info", "hello"),)))
    retry_now(store, kept)
    succeed(store, claim_one(store))

    prune(store, 60)

    assert listed_ids(store, tag=("customer", "17")) == [kept.run_id]
    assert len(store.list_logs(kept.run_id, 10)) == 1
    assert len(store.list_attempts(kept.run_id)) == 2


def keep(store, **retentions):
    """Let tasks register the number of seconds for which their runs are kept."""
    kept = {task: round(seconds * SECOND) for task, seconds in retentions.items()}
    op = RegisterWorker(WORKER, "host", 1, 15.0, "[]", json.dumps(TASKS), "{}", json.dumps(kept))
    store.do(op)


def test_runs_are_kept_for_the_retention_of_their_task(store, worker, clock):
    pruner = Pruner(store, WorkerSettings(retention=HOUR_SECONDS, dead_retention=2 * HOUR_SECONDS))
    keep(store, **{TASK: 60, OTHER_TASK: DAY_SECONDS})
    brief, dead = enqueue_and_succeed(store), enqueue_and_fail(store)
    long, dead_long = (
        enqueue_and_succeed(store, task=OTHER_TASK),
        enqueue_and_fail(store, task=OTHER_TASK),
    )

    def left_after(seconds):
        clock.advance(seconds)
        pruner.tick()
        return set(listed_ids(store))

    assert left_after(59) == {brief, dead, long, dead_long}
    assert left_after(2) == {dead, long, dead_long}
    assert left_after(3 * HOUR_SECONDS) == {long, dead_long}
    assert left_after(DAY_SECONDS) == set()
    assert list(store.audit(10)) == []


def test_runs_that_are_kept_for_ever_are_pruned_after_a_change_of_the_retention(
    store, worker, clock
):
    for_ever = WorkerSettings(retention=FOREVER, dead_retention=FOREVER)
    keep(store, **{TASK: 1000 * 365 * DAY_SECONDS})
    kept, others = enqueue_and_succeed(store), enqueue_and_succeed(store, task=OTHER_TASK)
    clock.advance(3000 * DAY_SECONDS)

    Pruner(store, for_ever).tick()
    assert len(listed_ids(store)) == 2
    Pruner(store, WorkerSettings()).tick()
    assert listed_ids(store) == [kept]
    assert others
    keep(store)
    clock.advance(31 * DAY_SECONDS)
    Pruner(store, WorkerSettings()).tick()
    assert listed_ids(store) == []


def child_of(parent_id: str) -> str:
    return json.dumps({"tenant": "x", PARENT_TAG: parent_id})


def test_a_child_is_kept_until_its_parent_no_longer_needs_it(store, worker, clock):
    parent = enqueue_and_claim(store)
    child = enqueue_and_succeed(store, tags=child_of(parent.run_id))
    clock.advance(2 * DAY_SECONDS)
    with_running_parent = prune(store, HOUR_SECONDS)
    retry_later(store, parent, 10 * DAY_SECONDS)
    clock.advance(2 * DAY_SECONDS)
    with_waiting_parent = prune(store, HOUR_SECONDS)
    clock.advance(9 * DAY_SECONDS)
    tick(store)
    fail(store, claim_one(store))
    clock.advance(2 * DAY_SECONDS)
    op = Prune(HOUR_SECONDS * SECOND, 100, dead_older_than=30 * DAY_SECONDS * SECOND)
    with_dead_parent = store.do(op).runs

    assert (with_running_parent, with_waiting_parent, with_dead_parent) == (0, 0, 0)
    assert store.get_run(child) is not None
    redrive(store, parent.run_id)
    tick(store)
    succeed(store, claim_one(store))
    clock.advance(2 * DAY_SECONDS)
    assert prune(store, HOUR_SECONDS) == 2
    assert listed_ids(store) == []


def test_a_child_without_a_parent_is_pruned(store, worker, clock):
    ended = enqueue_and_succeed(store)
    enqueue_and_succeed(store, tags=child_of(ended))
    enqueue_and_succeed(store, tags=child_of("018f4e2a-0000-7000-8000-000000000000"))
    clock.advance(2 * DAY_SECONDS)

    assert prune(store, HOUR_SECONDS) == 3


def test_runs_that_are_kept_do_not_use_up_the_limit_of_a_prune(store, worker, clock):
    keep(store, **{TASK: DAY_SECONDS})
    for _ in range(5):
        enqueue_and_succeed(store)
    clock.advance(1)  # Runs that ended at one instant are pruned in any order.
    gone = enqueue_and_succeed(store, task=OTHER_TASK)
    clock.advance(HOUR_SECONDS)

    assert [prune(store, 0, limit=2) for _ in range(3)] == [0, 0, 1]
    assert store.get_run(gone) is None


def test_a_prune_reports_that_it_reached_its_limit_while_rows_are_left(store, worker, clock):
    for number in range(5):
        store.do(SendEvent(f"e{number}", "1"))
        store.do(RecordAuditEntry("ada", "deploy", f"v{number}"))
    clock.advance(400 * DAY_SECONDS)
    op = Prune(0, 2)

    assert [store.do(op).most for _ in range(4)] == [2, 2, 1, 0]
    assert store.list_audit_entries(None, 10) == []


def test_no_table_grows_under_a_steady_load(store, worker, clock, tables):
    pruner = Pruner(store, WorkerSettings(act_retention=7 * DAY_SECONDS))
    sizes = []
    for cycle in range(4):
        for number in range(5):
            unique = key(f"{cycle}-{number}", ttl_seconds=DAY_SECONDS)
            found = enqueue_and_claim(store, key=unique, tags={"of": str(cycle)})
            store.do(AddLogs(found.run_id, 1, ((clock.now(), "info", "hello"),)))
            retry_now(store, found)
            succeed(store, claim_one(store))
            store.do(SendEvent(f"e{cycle}-{number}", "1"))
            cancel(store, enqueue_one(store))
            enqueue_and_fail(store)
        clock.advance(40 * DAY_SECONDS)
        tick(store)
        for _ in range(3):
            pruner.tick()
        sizes.append({name: len(rows) for name, rows in tables.everything().items()})

    # The tallies keep one row for each kind of end.
    assert sizes[1] == sizes[2] == sizes[3]
    assert sizes[3]["duly_history"] == sizes[3]["duly_keys"] == sizes[3]["duly_acts"] == 0
    assert list(store.audit(10)) == []
    count = store.count_runs()
    assert (count.accepted, count.pruned) == (60, 60)


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


def test_a_prune_that_is_behind_pauses_for_longer_than_it_took(store, worker, clock, monkeypatch):
    for _ in range(9):
        enqueue_and_succeed(store)
    clock.advance(8 * DAY_SECONDS)
    monkeypatch.setattr(pruner, "CONTINUATION_SECONDS", 0.0)
    monkeypatch.setattr(pruner, "TICK_BATCH", 2)
    # The times before and after each prune.
    seconds = iter([0.0, 0.001, 1.0, 1.02, 2.0, 2.09, 3.0, 3.5])
    monkeypatch.setattr(pruner, "monotonic", lambda: next(seconds))
    service = Pruner(store, WorkerSettings())

    pauses = [service.tick() for _ in range(4)]

    assert pauses == pytest.approx([0.02, 0.06, 0.1, 0.1])
