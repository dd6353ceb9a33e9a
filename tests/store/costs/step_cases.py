"""The costs of steps, events and schedules."""

from duly.core.schedule import UNANCHORED, IntervalTrigger, Rules, rules_text, trigger_text
from duly.core.schedule_plans import plan_due
from duly.core.states import State
from duly.core.verdict import Finish, Requeue
from duly.store.ops.operators import RetryRun
from duly.store.ops.runs import Settled
from duly.store.ops.schedules import (
    BackfillSchedule,
    FireSchedules,
    PutSchedule,
    RunSchedule,
    SetScheduleState,
)
from duly.store.ops.steps import (
    BeginStep,
    EndStep,
    ForgetStep,
    RecheckWaits,
    ResolveStep,
    SendEvent,
    WakeRuns,
)
from duly.store.ops.upkeep import DutyTurn
from tests.store.conformance.verbs import (
    ACTOR,
    HOUR_SECONDS,
    LANE,
    MINUTE,
    TASK,
    claimed_ids,
    enqueue_one,
    settle,
    settle_op,
    tick,
)
from tests.store.costs.cases import case
from tests.store.costs.run_cases import held, lost

TURN = DutyTurn("recheck", 0.0)

# -- steps --


def begun(world, **options):
    """Return the claim of a run that has begun its step."""
    found = held(world)
    world.apply(begin_op(found, **options))
    return found


def begin_op(found, name="name", kind="step", **options):
    """Build the op that begins a step."""
    return BeginStep(found.run_id, found.claim_number, name, kind, **options)


def waiting(world, event="paid"):
    """Return a run that waits for an event."""
    found = begun(world, kind="wait", awaited=event)
    again = Requeue(
        HOUR_SECONDS, found.attempt, found.retries_used, found.crashes, found.lane, awaits="name"
    )
    assert settle(world.store, settle_op(found, "suspended", again)) is Settled.DONE
    return found.run_id


@case("BeginStep: new")
def begin_new(world):
    assert (yield begin_op(held(world))).done is False


@case("BeginStep: ended before")
def begin_ended(world):
    found = begun(world)
    world.apply(EndStep(found.run_id, found.claim_number, "name", "7"))
    assert (yield begin_op(found)).result == "7"


@case("BeginStep: a wait for an event that was sent")
def begin_wait(world):
    found = held(world)
    world.apply(SendEvent("paid", "7"))
    step = yield begin_op(found, kind="wait", awaited="paid")
    assert (step.done, step.result) == (True, "7")


@case("BeginStep: the claim is lost")
def begin_late(world):
    assert (yield begin_op(lost(held(world)))) is None


@case("EndStep: begun before")
def end_begun(world):
    found = begun(world)
    assert (yield EndStep(found.run_id, found.claim_number, "name", "7")) is True


@case("EndStep: the claim is lost")
def end_late(world):
    found = lost(begun(world))
    assert (yield EndStep(found.run_id, found.claim_number, "name", "7")) is False


@case("ForgetStep: begun before")
def forget(world):
    found = begun(world)
    assert (yield ForgetStep(found.run_id, found.claim_number, "name")) is True
    assert world.store.list_steps(found.run_id) == []


@case("ForgetStep: the claim is lost")
def forget_late(world):
    found = lost(begun(world))
    assert (yield ForgetStep(found.run_id, found.claim_number, "name")) is False


@case("ResolveStep: it is done")
def resolve_done(world):
    found = interrupted(world)
    op = ResolveStep(RetryRun(found.run_id, ACTOR), "name", is_done=True, result="7")
    assert (yield op).steps == ("name",)


@case("ResolveStep: it runs again")
def resolve_again(world):
    found = interrupted(world)
    op = ResolveStep(RetryRun(found.run_id, ACTOR), "name", is_done=False)
    assert (yield op).steps == ("name",)


def interrupted(world):
    """Return the claim of a run that was interrupted in a step."""
    found = begun(world)
    settle(world.store, settle_op(found, "vanished", Finish(State.INTERRUPTED, "step")))
    return found


# -- events and waits --


@case("SendEvent: new")
def send_new(world):
    assert (yield SendEvent("paid", "7")) is True


@case("SendEvent: sent before")
def send_again(world):
    world.apply(SendEvent("paid", "7"))
    assert (yield SendEvent("paid", "7")) is False


@case("WakeRuns: one run that still waits")
def wake_none(world):
    assert (yield WakeRuns((waiting(world),))) == 0


@case("WakeRuns: one run")
def wake_one(world):
    found = held(world)
    child = enqueue_one(world.store, lane="process")
    world.apply(begin_op(found, kind="gather", awaited=f'["{child}"]'))
    again = Requeue(HOUR_SECONDS, 1, 0, 0, LANE, awaits="name")
    settle(world.store, settle_op(found, "suspended", again))
    world.tables.execute(f"DELETE FROM duly_runs WHERE id = '{child}'")  # noqa: S608 - the text is ours
    assert (yield WakeRuns((found.run_id,))) == 1


@case("RecheckWaits: nothing")
def recheck_nothing(world):
    waiting(world)
    assert (yield RecheckWaits("", 100)).roused == 0


@case("RecheckWaits: one run")
def recheck_one(world):
    run_id = waiting(world)
    now = "0" if world.is_sqlite else "now()"
    world.tables.execute(f"INSERT INTO duly_events VALUES ('paid', '7', {now})")  # noqa: S608 - as above
    assert (yield RecheckWaits("", 100)).roused == 1
    tick(world.store)
    assert claimed_ids(world.store) == [run_id]


@case("RecheckWaits: as a duty, and nothing has happened")
def recheck_in_turn(world):
    waiting(world)
    world.apply(RecheckWaits("", 100, TURN))
    assert (yield RecheckWaits("", 100, TURN)).roused == 0


# -- schedules --


def put_op(name="tidy", minutes=1, **changes):
    """Build the op that adds a schedule."""
    trigger = trigger_text(IntervalTrigger(minutes * MINUTE, UNANCHORED))
    usual = PutSchedule(
        name, "runtime", "here", TASK, "default", LANE, 0, "[[],{}]", trigger, rules_text(Rules())
    )
    return usual._replace(**changes)


def due(world, count=1):
    """Return the op that fires a number of due schedules."""
    world.apply(*(put_op(f"tidy{number}") for number in range(count)))
    world.clock.advance(60)
    found = world.store.list_due_schedules(100, at_least=0, less_than=MINUTE)
    return FireSchedules(tuple(plan_due(found)))


@case("PutSchedule: new")
def put_new(world):
    assert (yield put_op()).what == "created"


@case("PutSchedule: changed")
def put_changed(world):
    world.apply(put_op())
    assert (yield put_op(minutes=2)).what == "changed"


@case("PutSchedule: changed when it is due")
def put_changed_late(world):
    world.apply(put_op())
    world.clock.advance(60)
    assert (yield put_op(minutes=2)).what == "changed"


@case("PutSchedule: unchanged")
def put_unchanged(world):
    world.apply(put_op())
    assert (yield put_op()).what == "unchanged"


@case("PutSchedule: 20 unchanged")
def put_many_unchanged(world):
    ops = [put_op(f"tidy{number}") for number in range(20)]
    world.apply(*ops)
    assert {answer.what for answer in (yield ops)} == {"unchanged"}


@case("FireSchedules: one")
def fire_one(world):
    assert (yield due(world)).runs == 1


@case("FireSchedules: 20")
def fire_many(world):
    assert (yield due(world, 20)).runs == 20


@case("FireSchedules: one that was changed since it was read")
def fire_stale(world):
    op = due(world)
    world.apply(put_op("tidy0", priority=1))
    assert (yield op).runs == 0


@case("SetScheduleState: paused")
def pause_schedule(world):
    world.apply(put_op())
    assert (yield SetScheduleState("tidy", "paused", ACTOR)) == "active"


@case("SetScheduleState: active")
def resume_schedule(world):
    world.apply(put_op(), SetScheduleState("tidy", "paused", ACTOR))
    assert (yield SetScheduleState("tidy", "active", ACTOR)) == "paused"


@case("SetScheduleState: removed")
def remove_schedule(world):
    world.apply(put_op())
    assert (yield SetScheduleState("tidy", "removed", ACTOR)) == "active"


@case("SetScheduleState: unknown")
def pause_unknown_schedule(world):
    assert (yield SetScheduleState("tidy", "paused", ACTOR)) is None


@case("RunSchedule: known")
def run_schedule(world):
    world.apply(put_op())
    assert (yield RunSchedule("tidy", ACTOR)) in claimed_everywhere(world)


@case("RunSchedule: unknown")
def run_unknown_schedule(world):
    assert (yield RunSchedule("tidy", ACTOR)) is None


@case("BackfillSchedule: two instants")
def backfill(world):
    now = world.clock.now()
    world.apply(put_op())
    made = yield BackfillSchedule("tidy", (now - 2 * MINUTE, now - MINUTE), ACTOR)
    assert sorted(made) == claimed_everywhere(world)


@case("BackfillSchedule: unknown")
def backfill_unknown(world):
    assert (yield BackfillSchedule("tidy", (world.clock.now(),), ACTOR)) is None


def claimed_everywhere(world):
    """Return all runs that are ready."""
    return sorted(str(run_id) for (run_id,) in world.tables.rows("SELECT id FROM duly_runs"))
