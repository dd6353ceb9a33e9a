"""The costs of upkeep, recovery and carried runs."""

from duly.clock import new_id
from duly.core.states import SlotKind
from duly.store.ops.carriers import ClaimCarried, HandOver, PostponeHandOver, RerouteRuns
from duly.store.ops.operators import LimitQueue
from duly.store.ops.recovery import HandBackUnknown, Recover, RecoverOrphans
from duly.store.ops.steps import SendEvent
from duly.store.ops.upkeep import DutyTurn, Prune, RegisterWorker, RollUpCounts, Tick
from tests.store.conformance.verbs import (
    ACTOR,
    HOUR_SECONDS,
    MINUTE,
    SECOND,
    TASK,
    WORKER,
    claim,
    claimed_ids,
    enqueue_and_succeed,
    enqueue_many,
    enqueue_one,
    hand_over,
    lost,
    pause,
    register,
    success,
    take,
)
from tests.store.costs.cases import case
from tests.store.costs.run_cases import held
from tests.store.costs.step_cases import waiting

TURN = DutyTurn("duty", 60.0)
HOUR = round(HOUR_SECONDS * SECOND)

# -- workers --


@case("RegisterWorker: new")
def register_new(world):
    retentions = '{"a:b":1000000}'
    op = RegisterWorker(new_id(), "host", 1, 15.0, "[]", '["a:b"]', "{}", retentions)
    assert (yield op) is None
    assert world.store.get_worker(op.worker_id).state == "live"


@case("RegisterWorker: again, with another task")
def register_again(world):
    register(world.store, tasks=("a:b",))
    op = RegisterWorker(WORKER, "host", 4711, 15.0, '["default"]', '["a:b","c:d"]')
    assert (yield op) is None
    assert "c:d" in world.store.get_worker(WORKER).tasks


@case("Recover: a worker that holds nothing")
def recover_idle(world):
    register(world.store)
    assert (yield Recover(WORKER, lost)) == []
    assert world.store.get_worker(WORKER).state == "dead"


@case("Recover: a worker that holds one run, by its beats")
def recover_one(world):
    found = held(world)
    assert (yield Recover(WORKER, lost, beats=0)) == [found.run_id]


@case("Recover: a worker that holds 100 runs")
def recover_many(world):
    register(world.store)
    ids = enqueue_many(world.store, 100)
    claim(world.store)
    assert sorted((yield Recover(WORKER, lost))) == ids


@case("RecoverOrphans: none")
def recover_no_orphans(world):
    held(world)
    assert (yield RecoverOrphans(lost, 100)) == []


@case("RecoverOrphans: one run")
def recover_one_orphan(world):
    found = held(world)
    world.tables.execute("UPDATE duly_workers SET state = 'dead', stopped_at = started_at")
    assert (yield RecoverOrphans(lost, 100)) == [found.run_id]


@case("HandBackUnknown: none")
def hand_back_nothing(world):
    found = held(world)
    assert (yield HandBackUnknown(WORKER, frozenset({found.run_id}))) == []


@case("HandBackUnknown: one run")
def hand_back_one(world):
    found = held(world)
    assert (yield HandBackUnknown(WORKER, frozenset())) == [found.run_id]


# -- ticks --


@case("Tick: nothing to do")
def tick_nothing(world):
    register(world.store)
    enqueue_one(world.store)
    found = yield Tick(100)
    assert (found.promoted, found.parked, found.expired) == (0, 0, 0)


@case("Tick: as a duty, nothing to do")
def tick_in_turn(world):
    register(world.store)
    found = yield Tick(100, TURN)
    assert (found.promoted, found.parked, found.expired) == (0, 0, 0)


@case("Tick: as a duty, another worker's turn")
def tick_out_of_turn(world):
    register(world.store)
    world.apply(Tick(100, TURN))
    found = yield Tick(100, TURN)
    # SQLite ignores turns.
    assert world.is_sqlite or found is None


@case("Tick: three runs come due")
def tick_promotes(world):
    register(world.store)
    enqueue_many(world.store, 3, delay_seconds=1)
    world.clock.advance(2)
    assert (yield Tick(100)).promoted == 3


@case("Tick: three runs of a paused queue")
def tick_parks(world):
    register(world.store)
    enqueue_many(world.store, 3)
    pause(world.store)
    assert (yield Tick(100)).parked == 3


@case("Tick: three runs expire")
def tick_expires(world):
    register(world.store)
    enqueue_many(world.store, 3, expires_seconds=1)
    world.clock.advance(2)
    assert (yield Tick(100)).expired == 3


@case("Tick: an event wakes one run")
def tick_wakes(world):
    run_id = waiting(world)
    world.apply(SendEvent("paid", "7"))
    yield Tick(100)
    assert claimed_ids(world.store) == [run_id]


@case("Prune: nothing")
def prune_nothing(world):
    register(world.store)
    enqueue_and_succeed(world.store)
    assert (yield Prune(HOUR, 100)).runs == 0


@case("Prune: one run")
def prune_one(world):
    register(world.store)
    enqueue_and_succeed(world.store)
    world.clock.advance(2 * HOUR_SECONDS)
    assert (yield Prune(HOUR, 100)).runs == 1


@case("Prune: 100 runs")
def prune_many(world):
    register(world.store)
    enqueue_many(world.store, 100)
    world.apply(*map(success, claim(world.store)))
    world.clock.advance(2 * HOUR_SECONDS)
    assert (yield Prune(HOUR, 100)).runs == 100


@case("RollUpCounts: nothing")
def roll_up_nothing(world):
    assert (yield RollUpCounts(100)) == 0


@case("RollUpCounts: two runs of one hour")
def roll_up(world):
    register(world.store)
    for _ in range(2):
        enqueue_and_succeed(world.store)
        world.clock.advance(1)
    world.clock.advance(30 * 24 * HOUR_SECONDS)
    # PostgreSQL also adds up the counts of accepted runs.
    assert (yield RollUpCounts(100)) in ({2} if world.is_sqlite else {2, 3})


# -- runs of other engines --


def carried(world, *, is_sent=False):
    """Return a run that waits for another engine, or its message."""
    register(world.store)
    run_id = enqueue_one(world.store, lane=SlotKind.CARRIED)
    return hand_over(world.store)[0] if is_sent else run_id


def hand_over_op(most=None):
    """Build the op that hands runs over."""
    return HandOver((TASK,), stale=MINUTE, longest=3 * MINUTE, limit=10, most=most)


@case("HandOver: nothing")
def hand_over_nothing(world):
    register(world.store)
    assert (yield hand_over_op()) == ([], [])


@case("HandOver: one run")
def hand_over_one(world):
    run_id = carried(world)
    messages, _ = yield hand_over_op()
    assert [message.run_id for message in messages] == [run_id]


@case("HandOver: one run that was never claimed ends")
def hand_over_for_the_last_time(world):
    run_id = carried(world)
    hand_over(world.store, most=2)
    world.clock.advance(60)
    hand_over(world.store, most=2)
    world.clock.advance(180)
    assert (yield hand_over_op(most=2)) == ([], [run_id])


@case("PostponeHandOver: one run")
def postpone(world):
    message = carried(world, is_sent=True)
    assert (yield PostponeHandOver((message.run_id,), 5 * SECOND)) == 1


@case("RerouteRuns: nothing")
def reroute_nothing(world):
    register(world.store)
    enqueue_one(world.store)
    assert (yield RerouteRuns(100)) == 0


@case("RerouteRuns: one run comes back")
def bring_back(world):
    carried(world)
    register(world.store, lanes={TASK: SlotKind.THREAD})
    assert (yield RerouteRuns(100)) == 1


@case("RerouteRuns: one run goes to another engine")
def send_away(world):
    enqueue_one(world.store)
    register(world.store, lanes={TASK: SlotKind.CARRIED})
    assert (yield RerouteRuns(100)) == 1


@case("ClaimCarried: one run")
def claim_carried(world):
    message = carried(world, is_sent=True)
    claimed = yield ClaimCarried(WORKER, message.run_id, message.claim_number)
    assert claimed.run_id == message.run_id


@case("ClaimCarried: taken already")
def claim_carried_twice(world):
    message = carried(world, is_sent=True)
    take(world.store, message)
    assert (yield ClaimCarried(WORKER, message.run_id, message.claim_number)) is None


@case("ClaimCarried: one run, under the limit of its queue")
def claim_carried_under_limit(world):
    message = carried(world, is_sent=True)
    world.apply(LimitQueue("default", 1, ACTOR))
    claimed = yield ClaimCarried(WORKER, message.run_id, message.claim_number)
    assert claimed.run_id == message.run_id


@case("ClaimCarried: the limit of its queue is reached")
def claim_carried_beyond_limit(world):
    message = carried(world, is_sent=True)
    enqueue_one(world.store, lane=SlotKind.CARRIED)
    (other,) = hand_over(world.store)
    world.apply(LimitQueue("default", 1, ACTOR))
    take(world.store, other)
    assert (yield ClaimCarried(WORKER, message.run_id, message.claim_number)) is None
