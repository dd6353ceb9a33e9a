"""A backfill after the trigger of the schedule has changed, or after the schedule has ended."""

from duly.core.cron import Cron
from duly.store.ops.schedules import BackfillSchedule
from tests.store.conformance.test_schedules import MINUTE, fire, firings, put, schedule

DAY_SECONDS = 86_400


def test_a_backfill_does_not_count_an_instant_with_its_own_row_in_the_rows_of_spans(
    store, worker, clock
):
    often, seldom = Cron("*/10 * * * *", "UTC"), Cron("*/30 * * * *", "UTC")
    put(store, trigger=often, misfire="skip")
    clock.advance(3 * DAY_SECONDS)
    fire(store)
    long = next(row for row in firings(store) if row.row > 1)
    inside = range(long.instant + 20 * MINUTE, long.last_instant, 10 * MINUTE)
    half = next(instant for instant in inside if instant % (30 * MINUTE) == 0)
    put(store, trigger=seldom, misfire="skip")
    first = store.do(BackfillSchedule("tidy", (half,), "ada"))

    put(store, trigger=often, misfire="skip")
    second = store.do(BackfillSchedule("tidy", (half - 10 * MINUTE,), "ada"))

    assert len(first) == len(second) == 1


def test_a_backfill_of_an_ended_schedule_does_not_run_later_instants(store, worker, clock):
    begin = clock.now()
    put(store, end=begin + 5 * MINUTE)
    clock.advance(600)
    fire(store)
    assert schedule(store).state == "ended"

    runs = store.do(BackfillSchedule("tidy", (begin + 1000 * MINUTE,), "ada"))

    assert runs == []
