"""Ended schedules and unused locks are pruned, too."""

from typing import Any

import pytest

from duly.core.schedule import DateTrigger
from duly.store.due_schedules import fire_due
from duly.store.ops.locks import AcquireLock, ReleaseLock, RenewLock
from duly.store.ops.upkeep import Prune
from duly.store.reads import ScheduleFilter
from tests.store.conformance.test_schedules import MINUTE, put, set_state
from tests.store.conformance.verbs import DAY_SECONDS, SECOND

pytestmark = pytest.mark.pgbouncer

WEEK = int(7 * DAY_SECONDS * SECOND)
TTL = 30 * SECOND


def prune(store: Any) -> None:
    """Delete the schedules that ended, and the locks that were last used, more than a week ago."""
    store.do(Prune(WEEK, 100))


def names(store: Any) -> list[str]:
    """Return the names of all schedules, including removed ones."""
    return [each.name for each in store.list_schedules(ScheduleFilter(removed=True))]


def take(store: Any, owner: str, name: str = "index") -> int:
    """Take a lock; return its fence."""
    locked = store.do(AcquireLock(name, owner, "ada", TTL))
    assert locked.is_ours
    return locked.fence


def release(store: Any, owner: str, fence: int) -> None:
    was_ours = store.do(ReleaseLock("index", owner, fence))
    assert was_ours


def test_a_schedule_that_has_ended_is_pruned_a_week_later(store, clock):
    put(store, "once", DateTrigger(clock.now() + MINUTE))
    put(store, "from code", DateTrigger(clock.now() + MINUTE), source="code")
    put(store, "minutely")
    clock.advance(20 * DAY_SECONDS)
    fire_due(store)

    clock.advance(6 * DAY_SECONDS)
    prune(store)
    after_six_days = names(store)
    clock.advance(2 * DAY_SECONDS)
    prune(store)

    assert after_six_days == ["from code", "minutely", "once"]
    assert names(store) == ["from code", "minutely"]


def test_a_schedule_that_was_removed_is_pruned_a_week_later(store, clock):
    put(store, "gone", source="code")
    set_state(store, "removed", "gone")

    clock.advance(8 * DAY_SECONDS)
    prune(store)

    assert names(store) == []


def test_an_idle_lock_is_pruned_and_its_fence_still_grows(store, clock, tables):
    release(store, "a", take(store, "a"))
    last = take(store, "b")
    release(store, "b", last)

    clock.advance(8 * DAY_SECONDS)
    prune(store)
    left = tables.rows("SELECT name FROM duly_locks WHERE name <> ''")

    again = take(store, "c")
    release(store, "c", again)

    assert left == []
    assert last < again < take(store, "d")
    assert take(store, "e", "another") > last


def test_a_lock_that_is_in_use_is_not_pruned(store, clock, tables):
    fence = take(store, "a")
    clock.advance(8 * DAY_SECONDS)
    store.do(RenewLock("index", "a", fence, TTL))

    prune(store)

    assert tables.rows("SELECT name FROM duly_locks") == [("index",)]
