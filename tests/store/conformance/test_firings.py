"""Every firing has a run of its own, and every run of a schedule has its firing."""

from typing import Any

import pytest

from duly.core.schedule import UNANCHORED, IntervalTrigger
from duly.store.due_schedules import fire_due
from duly.store.ops.schedules import Fired, RunSchedule
from tests.store.conformance.test_schedules import MINUTE, firings, put, schedule
from tests.store.conformance.verbs import claimed_ids, state_of

pytestmark = pytest.mark.pgbouncer


def test_a_schedule_that_becomes_late_between_two_reads_fires_once(
    store, worker, clock, monkeypatch
):
    put(store, trigger=IntervalTrigger(10 * MINUTE, UNANCHORED))
    clock.advance(600 + 59.9)
    read = store.list_due_schedules

    def read_slowly(*arguments: Any, **bounds: Any) -> Any:
        found = read(*arguments, **bounds)
        clock.advance(0.2)
        return found

    monkeypatch.setattr(store, "list_due_schedules", read_slowly)

    fired = fire_due(store)

    (firing,) = firings(store)
    assert fired == Fired(1, 1)
    assert claimed_ids(store) == [firing.run_id] == [schedule(store).last_run_id]


def test_a_schedule_that_is_run_manually_twice_at_the_same_time_has_two_runs(store, clock):
    put(store)

    run_ids = [store.do(RunSchedule("tidy", "ada")) for _ in range(2)]

    assert [state_of(store, run_id) for run_id in run_ids] == ["queued", "queued"]
    assert [firing.run_id for firing in firings(store)] == run_ids
