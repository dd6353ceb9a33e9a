"""The costs of the engine's ops: accepting runs, claiming them, settling them."""

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.verdict import Requeue
from duly.store.ops.operators import LimitQueue
from duly.store.ops.runs import ClaimRuns, EnqueueAgain, Settled, Want
from duly.store.ops.steps import BeginStep
from duly.store.ops.updates import AddLogs, RestoreLogs, SetProgress
from tests.store.conformance.verbs import (
    ACTOR,
    HOUR_SECONDS,
    LANE,
    TASK,
    TASKS,
    WORKER,
    another_try,
    claim,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    failure,
    hand_back_op,
    key,
    order,
    register,
    settle_op,
    succeed,
    success,
)
from tests.store.costs.cases import case

MANY = 100
LINES = ((1, "info", "one"), (2, "info", "two"))


def claim_op(limit=MANY, limits=None, announcement=None):
    """Build the op that claims up to a number of runs."""
    return ClaimRuns(WORKER, (Want(None, LANE, limit),), TASKS, "", limits, announcement)


def held(world, **options):
    """Return a run that a worker holds."""
    register(world.store)
    return enqueue_and_claim(world.store, **options)


def lost(found):
    """Return the claim of a worker that has lost its run."""
    return found._replace(claim_number=found.claim_number + 1)


# -- accepting --


@case("Enqueue: plain")
def enqueue_plain(world):
    op = order()
    assert (yield op) == (op.run_id, True, False)


@case("Enqueue: for later, with tags")
def enqueue_later(world):
    assert (yield order(delay_seconds=60, tags={"a": "b"})).new


@case("Enqueue: new key")
def enqueue_keyed(world):
    assert (yield order(key="k")).new


@case("Enqueue: new key, of a task with two names")
def enqueue_keyed_with_names(world):
    assert (yield order(key=key("k")._replace(other_names=("other:name",)))).new


@case("Enqueue: known key")
def enqueue_known(world):
    known = enqueue_one(world.store, key="k")
    assert (yield order(key="k")) == (known, False, False)


@case("Enqueue: 100 plain")
def enqueue_batch(world):
    assert all(answer.new for answer in (yield [order() for _ in range(MANY)]))


@case("Enqueue: 100 new keys")
def enqueue_keyed_batch(world):
    ops = [order(key=f"k{number}") for number in range(MANY)]
    assert all(answer.new for answer in (yield ops))


@case("EnqueueAgain: not written before")
def enqueue_again_unknown(world):
    assert (yield EnqueueAgain(*order())).new


@case("EnqueueAgain: written before")
def enqueue_again_known(world):
    op = order()
    world.apply(op)
    assert (yield EnqueueAgain(*op)).run_id == op.run_id
    assert world.tables.rows("SELECT count(*) FROM duly_runs") == [(1,)]


# -- claiming --


@case("ClaimRuns: nothing ready")
def claim_nothing(world):
    register(world.store)
    assert (yield claim_op()) == []


@case("ClaimRuns: one run")
def claim_one_run(world):
    register(world.store)
    enqueue_one(world.store)
    assert len((yield claim_op())) == 1


@case("ClaimRuns: one run, announced")
def claim_and_announce(world):
    register(world.store)
    enqueue_one(world.store)
    assert len((yield claim_op(announcement="taken"))) == 1


@case("ClaimRuns: 100 runs")
def claim_batch(world):
    register(world.store)
    enqueue_many(world.store, MANY)
    assert len((yield claim_op())) == MANY


@case("ClaimRuns: limits known, none ready")
def claim_without_limited_runs(world):
    register(world.store)
    enqueue_one(world.store)
    assert len((yield claim_op(limits=ClaimLimits({TASK: 2})))) == 1


@case("ClaimRuns: under the limit of a queue")
def claim_under_queue_limit(world):
    register(world.store)
    world.apply(LimitQueue("default", 2, ACTOR))
    enqueue_many(world.store, 3)
    assert len((yield claim_op(limits=ClaimLimits({})))) == 2


@case("ClaimRuns: under the limit of a task")
def claim_under_task_limit(world):
    register(world.store)
    enqueue_many(world.store, 3, lane=limited_lane(LANE, TASK))
    assert len((yield claim_op(limits=ClaimLimits({TASK: 2})))) == 2


@case("ClaimRuns: the limit of a task is reached")
def claim_beyond_task_limit(world):
    register(world.store)
    enqueue_many(world.store, 3, lane=limited_lane(LANE, TASK))
    op = claim_op(limits=ClaimLimits({TASK: 2}))
    world.apply(op)
    assert (yield op) == []


# -- settling --


@case("Settle: one success")
def settle_success(world):
    op = success(held(world), "1")._replace(keyed=False)
    assert (yield op) is Settled.DONE


@case("Settle: one success of a run that may have a key")
def settle_keyed(world):
    op = success(held(world, key="k"))
    assert (yield op) is Settled.DONE


@case("Settle: one failure")
def settle_failure(world):
    assert (yield failure(held(world))._replace(keyed=False)) is Settled.DONE


@case("Settle: another try now")
def settle_retry(world):
    assert (yield another_try(held(world))) is Settled.DONE


@case("Settle: another try later")
def settle_retry_later(world):
    assert (yield another_try(held(world), HOUR_SECONDS)) is Settled.DONE


@case("Settle: handed back")
def settle_hand_back(world):
    assert (yield hand_back_op(held(world))) is Settled.DONE


@case("Settle: suspended until an event")
def settle_suspend(world):
    found = held(world)
    world.apply(BeginStep(found.run_id, found.claim_number, "step", "wait", "paid"))
    verdict = Requeue(
        HOUR_SECONDS, found.attempt, found.retries_used, found.crashes, found.lane, awaits="step"
    )
    assert (yield settle_op(found, "suspended", verdict)) is Settled.DONE


@case("Settle: the claim is lost")
def settle_late(world):
    assert (yield success(lost(held(world)))) is Settled.CLAIM_LOST


@case("Settle: 100 successes")
def settle_batch(world):
    register(world.store)
    enqueue_many(world.store, MANY)
    ops = [success(found)._replace(keyed=False) for found in claim(world.store)]
    assert (yield ops) == [Settled.DONE] * MANY


@case("Settle: 50 successes and 50 other tries")
def settle_mixed_batch(world):
    register(world.store)
    enqueue_many(world.store, MANY)
    found = claim(world.store)
    ops = [success(each)._replace(keyed=False) for each in found[:50]]
    assert (yield ops + list(map(another_try, found[50:]))) == [Settled.DONE] * MANY


@case("Settle: one success, with ClaimRuns of one run")
def settle_and_claim(world):
    op = success(held(world))._replace(keyed=False)
    enqueue_one(world.store)
    settled, claims = yield [op, claim_op()]
    assert (settled, len(claims)) == (Settled.DONE, 1)


# -- progress and log lines --


@case("SetProgress: the claim holds")
def progress(world):
    found = held(world)
    assert (yield SetProgress(found.run_id, found.claim_number, 0.5, "half")) is True


@case("SetProgress: the claim is lost")
def progress_late(world):
    found = lost(held(world))
    assert (yield SetProgress(found.run_id, found.claim_number, 0.5, "half")) is False


@case("AddLogs: two lines")
def logs(world):
    found = held(world)
    assert (yield AddLogs(found.run_id, found.claim_number, LINES)) is True


@case("AddLogs: two lines each of ten runs")
def logs_of_many(world):
    register(world.store)
    enqueue_many(world.store, 10)
    ops = [AddLogs(found.run_id, found.claim_number, LINES) for found in claim(world.store)]
    assert (yield ops) == [True] * 10


@case("AddLogs: the claim is lost")
def logs_late(world):
    found = held(world)
    succeed(world.store, found)
    assert (yield AddLogs(found.run_id, found.claim_number, LINES)) is False


@case("RestoreLogs: one of two lines is missing")
def restore_logs(world):
    found = held(world)
    world.apply(AddLogs(found.run_id, found.claim_number, LINES[:1]))
    assert (yield RestoreLogs(found.run_id, found.claim_number, LINES)) is True
    assert len(world.store.list_logs(found.run_id, 10)) == 2
