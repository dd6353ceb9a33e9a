"""The costs of operators' ops."""

from duly.core.states import State
from duly.core.verdict import Finish
from duly.store.ops.bulk import AdvanceBulk, StartBulk, TakeBulk
from duly.store.ops.operators import (
    Cancel,
    DiscardDead,
    InterruptRestored,
    InterruptRestoredResult,
    LimitQueue,
    PauseQueue,
    RecordAuditEntry,
    RescheduleRun,
    ResetKey,
    RetryRun,
    SetQueueCapacity,
)
from duly.store.ops.steps import BeginStep, EndStep
from tests.store.conformance.verbs import (
    ACTOR,
    SECOND,
    TASK,
    UNKNOWN_RUN,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_many,
    enqueue_one,
    register,
    settle,
    settle_op,
    succeed,
)
from tests.store.costs.cases import case
from tests.store.costs.run_cases import held

TTL = 30 * SECOND

# -- runs --


def ended(world, **options):
    """Return a run that has succeeded."""
    register(world.store)
    return enqueue_and_succeed(world.store, **options)


def failed(world, **options):
    """Return a run that has failed."""
    register(world.store)
    return enqueue_and_fail(world.store, **options)


@case("Cancel: a queued run")
def cancel_queued(world):
    assert (yield Cancel(enqueue_one(world.store), ACTOR)) == "cancelled"


@case("Cancel: a running run")
def cancel_running(world):
    assert (yield Cancel(held(world).run_id, ACTOR)) == "requested"


@case("Cancel: a final run")
def cancel_final(world):
    assert (yield Cancel(ended(world), ACTOR)) == "succeeded"


@case("Cancel: an unknown run")
def cancel_unknown(world):
    assert (yield Cancel(UNKNOWN_RUN, ACTOR)) is None


@case("Cancel: ten queued runs")
def cancel_many(world):
    ops = [Cancel(run_id, ACTOR) for run_id in enqueue_many(world.store, 10)]
    assert (yield ops) == ["cancelled"] * 10


@case("RescheduleRun: another time")
def reschedule_later(world):
    assert (yield RescheduleRun(enqueue_one(world.store), ACTOR, delay=SECOND)).done


@case("RescheduleRun: another queue, which has a capacity")
def reschedule_to_queue(world):
    world.apply(SetQueueCapacity("mail", 5, ACTOR))
    assert (yield RescheduleRun(enqueue_one(world.store), ACTOR, queue="mail")).done


@case("RescheduleRun: a running run")
def reschedule_running(world):
    assert (yield RescheduleRun(held(world).run_id, ACTOR, delay=0)).state == "running"


@case("RescheduleRun: an unknown run")
def reschedule_unknown(world):
    assert (yield RescheduleRun(UNKNOWN_RUN, ACTOR, delay=0)).state is None


@case("RetryRun: plain")
def retry_plain(world):
    assert (yield RetryRun(failed(world), ACTOR)).done


@case("RetryRun: with a key")
def retry_keyed(world):
    assert (yield RetryRun(failed(world, key="k"), ACTOR)).done


@case("RetryRun: another run has its key")
def retry_without_key(world):
    run_id = failed(world, key="k")
    world.apply(ResetKey(TASK, "k", ACTOR))
    holder = enqueue_one(world.store, key="k")
    answer = yield RetryRun(run_id, ACTOR)
    assert (answer.done, answer.held_by) == (False, holder)


@case("RetryRun: from a step")
def retry_from_step(world):
    found = held(world)
    world.apply(EndStep(found.run_id, found.claim_number, "name", "7"))
    succeed(world.store, found)
    assert (yield RetryRun(found.run_id, ACTOR, from_step="name")).done
    assert world.store.list_steps(found.run_id) == []


@case("RetryRun: with fresh effects")
def retry_afresh(world):
    assert (yield RetryRun(failed(world), ACTOR, fresh_effects=True)).done


@case("RetryRun: a step has to be resolved first")
def retry_unresolved(world):
    found = held(world)
    world.apply(BeginStep(found.run_id, found.claim_number, "name", "step"))
    settle(world.store, settle_op(found, "vanished", Finish(State.INTERRUPTED, "step")))
    assert (yield RetryRun(found.run_id, ACTOR)).unresolved == ("name",)


@case("RetryRun: a queued run")
def retry_queued(world):
    answer = yield RetryRun(enqueue_one(world.store), ACTOR)
    assert (answer.done, answer.state) == (False, "queued")


@case("RetryRun: an unknown run")
def retry_unknown(world):
    assert (yield RetryRun(UNKNOWN_RUN, ACTOR)) == (False, None, None, ())


@case("DiscardDead: a failed run")
def discard(world):
    assert (yield DiscardDead(failed(world), ACTOR, "")).done


@case("DiscardDead: a queued run")
def discard_queued(world):
    assert (yield DiscardDead(enqueue_one(world.store), ACTOR, "")).state == "queued"


@case("ResetKey: known")
def reset_known(world):
    enqueue_one(world.store, key="k")
    assert (yield ResetKey(TASK, "k", ACTOR)) is True


@case("ResetKey: unknown")
def reset_unknown(world):
    assert (yield ResetKey(TASK, "k", ACTOR)) is False


# -- queues, and the whole store --


@case("PauseQueue: paused")
def pause_queue(world):
    assert (yield PauseQueue("default", paused=True, actor=ACTOR)) is None
    assert world.store.is_paused("default")


@case("PauseQueue: resumed")
def resume_queue(world):
    world.apply(PauseQueue("default", paused=True, actor=ACTOR))
    assert (yield PauseQueue("default", paused=False, actor=ACTOR)) is None
    assert not world.store.is_paused("default")


@case("LimitQueue: limited")
def limit_queue(world):
    assert (yield LimitQueue("default", 2, ACTOR)) is None
    assert world.store.list_queues()[0].limit == 2


@case("SetQueueCapacity: bounded")
def bound_queue(world):
    assert (yield SetQueueCapacity("default", 2, ACTOR)) is None
    assert world.store.list_queues()[0].max_size == 2


@case("RecordAuditEntry: one")
def record_entry(world):
    assert (yield RecordAuditEntry(ACTOR, "deploy", "shop")) is None
    assert world.store.has_audit_entry("shop")


@case("InterruptRestored: nothing")
def restore_nothing(world):
    op = InterruptRestored(world.clock.now(), ACTOR, "restored", 100)
    assert (yield op) == InterruptRestoredResult(0, 0, 0)


@case("InterruptRestored: three runs")
def restore_three(world):
    enqueue_many(world.store, 3)
    op = InterruptRestored(world.clock.now(), ACTOR, "restored", 100)
    assert (yield op) == InterruptRestoredResult(3, 0, 0)


# -- acts on many runs --


def start_op(ticket="one", digest="d"):
    """Build the op that begins an act."""
    return StartBulk(ticket, "retry", "{}", digest, 2, "me", "retry 2 runs", ACTOR)


@case("StartBulk: new")
def start_bulk(world):
    assert (yield start_op()) == "one"


@case("StartBulk: the same act is under way")
def start_bulk_again(world):
    world.apply(start_op())
    assert (yield start_op("two")) == "one"


@case("AdvanceBulk: a page of ten retries")
def advance_bulk(world):
    register(world.store)
    ids = [enqueue_and_fail(world.store) for _ in range(10)]
    world.apply(start_op())
    acts = tuple(RetryRun(run_id, ACTOR) for run_id in ids)
    assert (yield AdvanceBulk("one", "me", None, min(ids), acts)) is True
    assert world.store.get_bulk("one").done == 10


@case("AdvanceBulk: a page of ten cancels")
def advance_bulk_of_cancels(world):
    ids = enqueue_many(world.store, 10)
    world.apply(start_op())
    acts = tuple(Cancel(run_id, ACTOR) for run_id in ids)
    assert (yield AdvanceBulk("one", "me", None, min(ids), acts)) is True
    assert world.store.get_bulk("one").done == 10


@case("AdvanceBulk: another owner has it")
def advance_bulk_of_others(world):
    world.apply(start_op())
    assert (yield AdvanceBulk("one", "you", None, None)) is False


@case("TakeBulk: none")
def take_no_bulk(world):
    world.apply(start_op())
    assert (yield TakeBulk("you", TTL)) == []


@case("TakeBulk: one")
def take_bulk(world):
    world.apply(start_op())
    world.clock.advance(31)
    assert (yield TakeBulk("you", TTL)) == ["one"]
