"""Schedules that are far late catch up in bounded pieces, and do not delay other schedules."""

from itertools import pairwise
from typing import Any

import pytest

from duly.core.cron import Cron
from duly.core.schedule import ON_TIME
from duly.core.schedule_plans import DueSchedule, plan_due
from duly.limits import LATE_BATCH, LOOK_BYTES, LOOK_ROWS, SINGLE_FIRINGS
from duly.store.due_schedules import fire_due
from duly.store.ops.schedules import Fired, FireSchedules, SetScheduleState
from tests.store.conformance.test_schedules import MINUTE, firings, put, schedule

pytestmark = pytest.mark.pgbouncer

MINUTELY_CRON = Cron("* * * * *", "Europe/Paris")


def read_late(store: Any) -> list[DueSchedule]:
    """Return the late schedules as a read of due schedules returns them."""
    return store.list_due_schedules(LATE_BATCH, at_least=ON_TIME, less_than=10**9 * ON_TIME)


def test_one_round_writes_a_bounded_number_of_rows(store, clock):
    names = [f"late{n}" for n in range(12)]
    for name in names:
        put(store, name, MINUTELY_CRON)
    clock.advance(2 * 86_400)

    fired = fire_due(store)

    rows = sum(len(firings(store, name)) for name in names)
    assert fired.has_more
    assert LOOK_ROWS <= rows < LOOK_ROWS + SINGLE_FIRINGS + 2


def test_every_missed_instant_is_accounted_for_once_in_few_rows(store, clock):
    put(store, "late", MINUTELY_CRON)
    begin = schedule(store, "late").next_at
    clock.advance(8 * 86_400)

    while fire_due(store).has_more:
        pass

    rows = firings(store, "late")
    for row, later in pairwise(rows):
        assert row.last_instant == row.instant + (row.row - 1) * MINUTE
        assert later.instant == row.last_instant + MINUTE
    assert rows[0].instant == begin
    assert rows[-1].last_instant + MINUTE == schedule(store, "late").next_at > clock.now()
    assert [row.outcome for row in rows[-2:]] == ["skipped", "run"]
    assert len(rows) <= SINGLE_FIRINGS + 3


def test_a_schedule_that_is_on_time_fires_in_the_same_round_as_late_ones(store, clock):
    for n in range(LATE_BATCH + 5):
        put(store, f"late{n}", MINUTELY_CRON)
    clock.advance(2 * 86_400)
    put(store, "on time")
    clock.advance(60)

    fire_due(store)

    assert [row.outcome for row in firings(store, "on time")] == ["run"]


def test_a_plan_is_dropped_if_its_schedule_has_changed_since(store, clock):
    put(store, "late", MINUTELY_CRON)
    clock.advance(600)
    planned = plan_due(read_late(store))
    store.do(SetScheduleState("late", "paused", "ada", "why"))
    before = firings(store, "late")

    fired = store.do(FireSchedules(tuple(planned)))

    assert (len(planned), fired) == (1, Fired(0, 0))
    assert firings(store, "late") == before


def test_a_plan_that_is_written_twice_fires_once(store, clock):
    put(store, "late", MINUTELY_CRON)
    clock.advance(600)
    planned = plan_due(read_late(store))

    answers = [store.do(FireSchedules(tuple(planned))) for _ in range(2)]

    assert answers == [Fired(1, 1), Fired(0, 0)]


def test_runs_that_are_caught_up_are_written_in_pieces_of_bounded_size(store, clock):
    arguments = f'[["{"x" * 200_000}"],{{}}]'
    in_one_look = LOOK_BYTES // len(arguments)
    rules = {"misfire": "all", "max_catch_up": 100, "overlap": "allow"}
    put(store, "late", MINUTELY_CRON, arguments=arguments, **rules)
    clock.advance(60 * (in_one_look + 2))

    looks = [fire_due(store), fire_due(store)]

    assert [(fired.runs, fired.has_more) for fired in looks] == [(in_one_look, True), (2, False)]
