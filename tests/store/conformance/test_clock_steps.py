"""Schedules continue after a clock that was ahead has been set back."""

from typing import Any

import pytest

from duly.clock import new_id
from duly.core.cron import Cron
from duly.core.record import Claim
from duly.core.schedule import DateTrigger
from duly.store import due_schedules
from duly.store.due_schedules import fire_due
from tests.store.conformance.test_schedules import DAY, MINUTE, firings, put, schedule
from tests.store.conformance.verbs import claim, enqueue_one, register, succeed

pytestmark = pytest.mark.pgbouncer

HOURLY = Cron("0 * * * *", "UTC")
YEAR_SECONDS = 365 * 86_400


def fire_all(store: Any) -> int:
    """Account for everything that is due; return the number of runs that were created."""
    runs = 0
    while (fired := fire_due(store)).has_more:
        runs += fired.runs
    return runs + fired.runs


def claim_ahead(store: Any) -> Claim:
    """Claim a run while the clock is ahead.

    The times of a worker's claims only grow, so this worker is not used for anything else.
    """
    worker_id = new_id()
    register(store, worker_id)
    (found,) = claim(store, 1, worker=worker_id)
    return found


def step(clock: Any, seconds: float) -> None:
    """Set the clock forward or back."""
    clock.advance(seconds)


@pytest.mark.parametrize("trigger", [HOURLY, None], ids=["cron", "interval"])
def test_a_schedule_fires_at_its_usual_times_after_the_clock_was_a_year_ahead(
    store, worker, clock, trigger
):
    put(store, **{} if trigger is None else {"trigger": trigger})
    begin = schedule(store).next_at
    step(clock, YEAR_SECONDS)
    assert fire_all(store) == 1
    succeed(store, claim_ahead(store))
    step(clock, -YEAR_SECONDS)
    fire_all(store)

    assert schedule(store).next_at == begin
    clock.advance((begin - clock.now()) / 1_000_000)
    assert fire_all(store) == 1

    rows = firings(store)
    # The second run has the latest instant of a year ahead, which may be almost an hour late.
    assert [row.outcome for row in rows] in (["run", "run"], ["run", "caught_up"])
    assert rows[0].instant == begin


def test_instants_before_the_clock_went_ahead_stay_accounted_for(store, worker, clock):
    put(store, trigger=Cron("* * * * *", "UTC"))
    begin = schedule(store).next_at
    clock.advance(2 * 86_400)
    step(clock, YEAR_SECONDS)
    fire_all(store)
    succeed(store, claim_ahead(store))
    step(clock, -YEAR_SECONDS)
    fire_all(store)

    past = [row for row in firings(store) if row.instant <= clock.now()]

    assert past[0].instant == begin
    assert sum(row.row for row in past) == (clock.now() - begin) // MINUTE + 1
    assert all(row.last_instant <= clock.now() for row in past)
    assert schedule(store).next_at - clock.now() <= MINUTE


def test_an_instant_that_ran_while_the_clock_was_wrong_does_not_run_again(store, worker, clock):
    put(store, "once", DateTrigger(clock.now() + int(DAY)))
    step(clock, 2 * 86_400)
    assert fire_all(store) == 1
    step(clock, -2 * 86_400)

    fire_all(store)
    clock.advance(2 * 86_400)

    assert fire_all(store) == 0
    assert schedule(store, "once").state == "ended"


def test_a_schedule_that_ended_while_the_clock_was_wrong_is_active_again(store, worker, clock):
    put(store, trigger=HOURLY, end=clock.now() + 10 * int(DAY))
    begin = schedule(store).next_at
    step(clock, YEAR_SECONDS)
    fire_all(store)
    assert schedule(store).state == "ended"
    step(clock, -YEAR_SECONDS)

    fire_all(store)

    assert (schedule(store).state, schedule(store).next_at) == ("active", begin)


def test_runs_that_expire_are_claimed_after_the_clock_was_ahead(store, clock):
    worker_id = new_id()  # A worker of this test only, for the same reason as in `claim_ahead`.
    register(store, worker_id)
    enqueue_one(store)
    step(clock, YEAR_SECONDS)
    assert len(claim(store, 1, worker=worker_id)) == 1
    step(clock, -YEAR_SECONDS)
    run_id = enqueue_one(store, expires_seconds=60)

    (found,) = claim(store, 1, worker=worker_id)

    assert found.run_id == run_id


def test_a_schedule_that_cannot_be_read_does_not_keep_others_from_continuing(
    store, worker, clock, tables
):
    put(store, name="readable", trigger=HOURLY)
    put(store, name="unreadable", trigger=HOURLY)
    begin = schedule(store, "readable").next_at
    step(clock, YEAR_SECONDS)
    fire_all(store)
    step(clock, -YEAR_SECONDS)
    update = "UPDATE duly_schedules SET trigger = replace(trigger, '{}', '{}')"
    elsewhere = f"{update} WHERE name = 'unreadable'"
    tables.execute(elsewhere.format("UTC", "Mars/Base"))
    fire_all(store)

    assert schedule(store, "readable").next_at == begin
    # A host that knows the zone lets the other schedule continue.
    tables.execute(elsewhere.format("Mars/Base", "UTC"))
    fire_all(store)
    assert schedule(store, "unreadable").next_at == begin


def test_schedules_that_cannot_be_read_are_not_read_in_every_round(
    store, worker, clock, tables, monkeypatch
):
    monkeypatch.setattr(due_schedules, "LATE_BATCH", 2)
    for number in range(3):
        put(store, name=f"unreadable {number}", trigger=HOURLY)
    step(clock, YEAR_SECONDS)
    fire_all(store)
    step(clock, -YEAR_SECONDS)
    tables.execute("UPDATE duly_schedules SET trigger = replace(trigger, 'UTC', 'Mars/Base')")

    looks = [fire_due(store).has_more for _ in range(3)]

    assert looks[-1] is False
    # A host that knows the zone tries until all of them continue.
    tables.execute("UPDATE duly_schedules SET trigger = replace(trigger, 'Mars/Base', 'UTC')")
    fire_all(store)
    assert store.list_schedules_ahead(5, by=0) == []
