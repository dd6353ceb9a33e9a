"""A store that commits ops separately writes a prefix of a call, in the order of the store."""

import itertools

import pytest

from duly import faultpoints
from duly.errors import StoreUnavailable
from duly.store.ops.operators import Cancel, RetryRun
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.updates import SetProgress
from duly.store.ops.upkeep import Tick
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    TASKS,
    TIMEOUT,
    WORKER,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_one,
    order,
    outcomes_of,
    pausing,
    submitted,
    success,
)
from tests.store.separate_commits import SeparateCommits

SEEDS = range(10)
POINTS = ("operate", "recover", "enqueue", "settle", "claim")


def mixed_call(store):
    """Build a call that each store carries out in another order than that of its ops."""
    running, dead = enqueue_and_claim(store), enqueue_and_fail(store)
    return [
        ClaimRuns(WORKER, (Want("mail", LANE, 5),), TASKS),
        Tick(100),
        Cancel(enqueue_one(store, delay_seconds=60), ACTOR),
        order(queue="mail"),
        pausing("other"),
        success(running),
        RetryRun(dead, ACTOR, delay=60_000_000),
        SetProgress(running.run_id, running.claim_number, 0.5, None),
    ]


def applied(store, ops):
    """Write ops and wait for their answers."""
    return store.apply(ops)


def submitted_and_answered(store, ops):
    """Submit ops to the store, and wait for their answers."""
    return submitted(store, ops).result(TIMEOUT)


WRITES = pytest.mark.parametrize("write", [applied, submitted_and_answered])


def test_ops_are_carried_out_in_the_order_of_the_store(store, worker):
    seen: list[str] = []
    for point in POINTS:
        faultpoints.arm(f"{point}.before_write", lambda point=point: seen.append(point))

    def order_of_commits(target):
        ops = mixed_call(store)
        seen.clear()
        target.apply(ops)
        return [point for point, _ in itertools.groupby(seen)]

    assert order_of_commits(SeparateCommits(store)) == order_of_commits(store)


@WRITES
def test_without_failures_all_ops_are_answered_in_the_order_of_the_call(store, worker, write):
    separate = SeparateCommits(store, seed=1, rate=0.0)

    answers = write(separate, mixed_call(store))

    assert [type(answer).__name__ for answer in answers] == [
        *("Claims", "Ticked", "str", "Accepted", "NoneType", "Settled", "RetriedRun", "bool")
    ]
    assert separate.separated == 1
    assert separate.failures == []


@WRITES
def test_a_failure_commits_a_prefix_of_the_call_only(store, worker, write):
    lengths = set()
    for seed in SEEDS:
        separate = SeparateCommits(store, seed=seed, rate=1.0)
        running, *others = (enqueue_and_claim(store) for _ in range(3))
        before = {run.run_id: outcomes_of(store, run.run_id) for run in (running, *others)}

        with pytest.raises(StoreUnavailable, match="between two ops"):
            write(separate, [success(run) for run in (running, *others)])

        (failure,) = separate.failures
        written, left = ([op.run_id for op in ops] for ops in failure)
        assert all(outcomes_of(store, run_id) == [(1, "returned")] for run_id in written)
        assert all(outcomes_of(store, run_id) == before[run_id] for run_id in left)
        assert {*written, *left} == set(before)
        lengths.add(len(written))
        store.apply([success(run) for run in (running, *others)])
    assert lengths == {1, 2}


@WRITES
def test_a_call_of_one_op_never_fails(store, write):
    separate = SeparateCommits(store, rate=1.0)

    assert write(separate, [order()])[0].new
    assert write(separate, []) == []
    assert separate.failures == []


def test_the_seed_decides_which_calls_fail(store):
    def failures(seed):
        separate = SeparateCommits(store, seed=seed, rate=0.5)
        failed = []
        for _ in range(20):
            try:
                separate.apply([order(), order()])
            except StoreUnavailable:
                failed.append(True)
            else:
                failed.append(False)
        return failed

    assert failures(1) == failures(1)
    assert failures(1) != failures(2)
