"""A floor hides a run at most until the next look. Only PostgreSQL has floors."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pytest

from duly.clock import new_id
from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.record import Claim
from duly.core.states import SlotKind
from duly.store.ops.operators import RescheduleRun
from duly.store.ops.recovery import HandBackUnknown
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.schedules import BackfillSchedule
from duly.store.postgres import floors
from tests.store.conformance.stores import Tables, TestClock
from tests.store.conformance.test_schedules import put
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    MINUTE,
    OTHER_WORKER,
    TASK,
    TASKS,
    WORKER,
    claimed_ids,
    enqueue_and_claim,
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    hand_over,
    pause,
    recover,
    redrive,
    register,
    resume,
    retry_now,
    state_of,
    succeed,
    take,
    tick,
    unstarted,
)

pytestmark = pytest.mark.stores("postgres", "pgbouncer")

LONG = 10.0
"""Seconds: longer than the distance of floors from the time of a look, shorter than they last."""


class Here(NamedTuple):
    """The objects that a way for runs to become ready needs."""

    store: Any
    clock: TestClock
    tables: Tables


@pytest.fixture
def here(store: Any, clock: TestClock, tables: Tables, worker: str) -> Here:
    """A store with a live worker that has run one run, so that a look finds a queue for a floor."""
    enqueue_and_succeed(store)
    return Here(store, clock, tables)


@pytest.fixture
def look(here: Here, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """A function that looks at the whole index after some time, and treats the look as slow."""
    monkeypatch.setattr(floors, "SLOW_SECONDS", -1.0)

    def look_now() -> bool:
        here.clock.advance(LONG)
        return here.store._here().floors.look(0.0)

    return look_now


# -- the ways for a run to become ready below a floor: the look takes place at the yield --

Way = Generator[None, None, str]


def by_requeue(here: Here) -> Way:
    held = enqueue_and_claim(here.store)
    yield
    retry_now(here.store, held)
    return held.run_id


def by_hand_back(here: Here) -> Way:
    held = enqueue_and_claim(here.store)
    yield
    here.store.do(HandBackUnknown(WORKER, frozenset()))
    return held.run_id


def by_recovery(here: Here) -> Way:
    register(here.store, OTHER_WORKER)
    held = enqueue_and_claim(here.store, worker=OTHER_WORKER)
    yield
    recover(here.store, OTHER_WORKER, unstarted)
    return held.run_id


def by_promotion(here: Here) -> Way:
    run_id = enqueue_one(here.store, delay_seconds=1.0)
    yield
    tick(here.store)
    return run_id


def by_resuming_its_queue(here: Here) -> Way:
    pause(here.store)
    run_id = enqueue_one(here.store)
    tick(here.store)
    yield
    resume(here.store)
    tick(here.store)
    return run_id


def by_retry(here: Here) -> Way:
    run_id = enqueue_and_fail(here.store)
    redrive(here.store, run_id)
    yield
    tick(here.store)
    return run_id


def by_a_reschedule_that_keeps_its_time(here: Here) -> Way:
    run_id = enqueue_one(here.store, delay_seconds=1.0, priority=-5)
    yield
    here.store.do(RescheduleRun(run_id, ACTOR, priority=0))
    return run_id


def by_a_late_commit(here: Here) -> Way:
    run_id = new_id()
    here.tables.execute("BEGIN")
    here.tables.execute(
        f"SELECT duly_enqueue('{run_id}', '{TASK}', 'default', '{LANE}', 0, '[[],{{}}]', 0,"
        " NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    yield
    here.tables.execute("COMMIT")
    return run_id


WAYS = [
    by_requeue,
    by_hand_back,
    by_recovery,
    by_promotion,
    by_resuming_its_queue,
    by_retry,
    by_a_reschedule_that_keeps_its_time,
    by_a_late_commit,
]


@pytest.mark.parametrize("becomes_ready", WAYS)
def test_a_run_that_becomes_ready_below_a_floor_is_found_by_the_next_look(
    here, look, becomes_ready
):
    way = becomes_ready(here)
    next(way)
    assert look()
    run_id = the_end_of(way)

    before = claimed_ids(here.store)
    assert look()

    assert before == []
    assert claimed_ids(here.store) == [run_id]


def test_a_run_that_expires_below_a_floor_is_ended_after_the_next_look(here, look):
    held = enqueue_and_claim(here.store, expires_seconds=LONG / 2)
    assert look()
    here.store.do(HandBackUnknown(WORKER, frozenset()))

    tick(here.store)
    before = state_of(here.store, held.run_id)
    assert look()
    tick(here.store)

    assert before == "queued"
    assert state_of(here.store, held.run_id) == "cancelled"


def test_floors_expire_if_no_look_renews_them(here, look):
    way = by_hand_back(here)
    next(way)
    look()
    run_id = the_end_of(way)

    here.clock.advance(2 * LONG)

    assert claimed_ids(here.store) == [run_id]


def test_floors_from_a_future_time_are_not_used(here, look):
    way = by_hand_back(here)
    next(way)
    look()
    run_id = the_end_of(way)

    # As after the server's clock was set back.
    here.tables.execute(
        "UPDATE duly_looks SET looked_at = looked_at + interval '1 hour',"
        " until = until + interval '1 hour'"
    )

    assert claimed_ids(here.store) == [run_id]
    assert look()
    assert here.tables.rows("SELECT count(*) FROM duly_look WHERE number IS NOT NULL") == [(1,)]


def test_a_backfilled_run_is_due_now_and_so_above_the_floor(here, look):
    put(here.store)
    instant = here.clock.now() // MINUTE * MINUTE
    assert look()

    (run_id,) = here.store.do(BackfillSchedule("tidy", (instant,), "ada"))

    assert claimed_ids(here.store) == [run_id]


@pytest.mark.parametrize(
    "changes", [{}, {"priority": 5}, {"priority": -5}, {"queue": "zoo"}], ids=str
)
def test_a_run_that_is_rescheduled_to_now_is_found_at_once(here, look, changes):
    run_id = enqueue_one(here.store, delay_seconds=60.0)
    assert look()

    here.store.do(RescheduleRun(run_id, ACTOR, delay=0, **changes))

    assert claimed_ids(here.store) == [run_id]


def test_a_run_that_is_rescheduled_to_an_earlier_time_is_promoted_then(here, look):
    run_id = enqueue_one(here.store, delay_seconds=600.0)
    assert look()

    here.store.do(RescheduleRun(run_id, ACTOR, delay=2_000_000))
    here.clock.advance(2.0)
    tick(here.store)

    assert claimed_ids(here.store) == [run_id]


@pytest.mark.parametrize(
    "where",
    [
        {},
        {"queue": "another"},
        {"queue": "zoo"},
        {"priority": 5},
        {"priority": -5},
        {"lane": SlotKind.LOOP},
        {"lane": SlotKind.SUSPECT},
    ],
    ids=str,
)
def test_a_new_run_is_found_at_once_in_every_queue_lane_and_priority(here, look, where):
    enqueue_and_succeed(here.store, queue="mail", priority=1)
    assert look()

    run_id = enqueue_one(here.store, **where)

    assert claimed_ids(here.store, lane=where.get("lane", LANE)) == [run_id]


def test_priorities_and_queues_keep_their_order_above_floors(here, look):
    for priority in (0, 1, 2):
        enqueue_and_succeed(here.store, priority=priority)
    assert look()
    ids = [
        enqueue_one(here.store, priority=priority, queue=queue)
        for queue in ("default", "mail")
        for priority in (0, 3, 1, -1)
    ]
    of_default, of_mail = [[ids[place + number] for number in (1, 2, 0, 3)] for place in (0, 4)]

    assert claimed_ids(here.store, 6, after_queue="default") == sorted_by_urgency(
        [*of_mail, *of_default[:2]], ids
    )


def test_a_fast_look_leaves_no_floors_in_force(here, monkeypatch):
    monkeypatch.setattr(floors, "SLOW_SECONDS", 1000.0)

    assert not here.store._here().floors.look(0.0)

    assert here.tables.rows("SELECT count(*) FROM duly_floors") == [(0,)]


def test_only_one_process_at_a_time_looks(here, look):
    look()
    first = here.tables.rows("SELECT number FROM duly_looks")
    here.tables.execute("BEGIN")
    here.tables.execute(floors.SQL["lock"])

    look()

    here.tables.execute("COMMIT")
    assert here.tables.rows("SELECT number FROM duly_looks") == first
    look()
    assert here.tables.rows("SELECT number FROM duly_looks") != first


def test_only_the_rows_of_the_last_look_are_kept(here, look):
    for _ in range(3):
        look()

    assert here.tables.rows("SELECT count(*) FROM duly_looks") == [(1,)]
    assert here.tables.rows("SELECT DISTINCT look FROM duly_floors") == here.tables.rows(
        "SELECT number FROM duly_looks"
    )


def test_a_peek_reports_ready_runs_above_floors_only(here, look, monkeypatch):
    way = by_hand_back(here)
    next(way)
    look()
    monkeypatch.setattr(floors, "SLOW_SECONDS", 1000.0)
    monkeypatch.setattr(here.store._here().floors, "note_cost", lambda *_: None)
    the_end_of(way)

    below = here.store.peek()
    enqueue_one(here.store)

    assert not below.ready
    assert here.store.peek().ready


def test_runs_under_a_limit_have_floors_too(here, look):
    lane = limited_lane(LANE, TASK)

    def claims() -> list[Claim]:
        op = ClaimRuns(WORKER, (Want(None, LANE, 10),), TASKS, limits=ClaimLimits({TASK: 10}))
        return here.store.do(op)

    def ids() -> list[str]:
        return [claim.run_id for claim in claims()]

    enqueue_one(here.store, lane=lane)
    (first,) = claims()
    succeed(here.store, first)
    below = enqueue_one(here.store, lane=lane)
    assert ids() == [below]
    look()
    here.store.do(HandBackUnknown(WORKER, frozenset()))
    before = ids()
    above = [enqueue_one(here.store, lane=lane, priority=priority) for priority in (1, 0)]
    found = ids()
    look()

    assert before == []
    assert found == above
    assert ids() == [below]


def test_relays_hand_over_runs_above_floors(here, look):
    enqueue_one(here.store, lane=SlotKind.CARRIED)
    (message,) = hand_over(here.store)
    succeed(here.store, take(here.store, message))
    look()
    assert here.tables.rows("SELECT 1 FROM duly_floors WHERE lane = 'carried'")

    run_id = enqueue_one(here.store, lane=SlotKind.CARRIED)

    assert [message.run_id for message in hand_over(here.store)] == [run_id]


def the_end_of(way: Way) -> str:
    """Let the run become ready; return its id."""
    with pytest.raises(StopIteration) as end:
        next(way)
    return end.value.value


def sorted_by_urgency(chosen: list[str], enqueued: list[str]) -> list[str]:
    """Return runs in the order of a claim."""
    urgency = dict(zip(enqueued, [0, 3, 1, -1] * 2, strict=True))
    return sorted(chosen, key=lambda run_id: (-urgency[run_id], enqueued.index(run_id)))


def test_runs_that_wait_for_their_time_have_a_floor_too(here, look):
    here.tables.execute("BEGIN")
    late = new_id()
    here.tables.execute(
        f"SELECT duly_enqueue('{late}', '{TASK}', 'default', '{LANE}', 0, '[[],{{}}]',"
        " 1000000, NULL, NULL, NULL, NULL, NULL, NULL, NULL)"
    )
    in_time = enqueue_one(here.store, delay_seconds=LONG + 1)
    assert look()
    here.tables.execute("COMMIT")
    here.clock.advance(2.0)

    tick(here.store)
    assert claimed_ids(here.store) == [in_time]
    assert look()
    tick(here.store)

    assert claimed_ids(here.store) == []
    assert look()
    assert claimed_ids(here.store) == [late]
