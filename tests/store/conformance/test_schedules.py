"""A schedule has one run per due instant and accounts for each instant once.

This holds for any number of workers that fire schedules, at any time.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from duly import faultpoints
from duly.core.cron import Cron
from duly.core.record import FiringRecord, ScheduleRecord
from duly.core.schedule import (
    UNANCHORED,
    DateTrigger,
    IntervalTrigger,
    Rules,
    Trigger,
    read_trigger,
    rules_text,
    trigger_text,
)
from duly.limits import PLAN_INSTANTS, SINGLE_FIRINGS
from duly.store.due_schedules import fire_due
from duly.store.ops.schedules import (
    BackfillSchedule,
    Fired,
    PutSchedule,
    PutScheduleResult,
    RunSchedule,
    ScheduleBehind,
    SetScheduleState,
)
from duly.store.ops.upkeep import Prune
from duly.store.reads import ScheduleFilter
from tests.store.conformance.verbs import (
    DAY_SECONDS,
    LANE,
    SECOND,
    TASK,
    TIMEOUT,
    claim,
    claim_one,
    claimed_ids,
    enqueue_and_succeed,
    fail,
    listed_ids,
    run_of,
    state_of,
    succeed,
)

pytestmark = pytest.mark.pgbouncer

MINUTE = 60 * SECOND
DAY = DAY_SECONDS * SECOND
MINUTELY = IntervalTrigger(MINUTE, UNANCHORED)


def put(
    store: Any, name: str = "tidy", trigger: Trigger = MINUTELY, **options: Any
) -> PutScheduleResult:
    """Create or change a schedule."""
    known = Rules.__dataclass_fields__
    rules = Rules(**{option: options.pop(option) for option in list(options) if option in known})
    usual = {
        "source": "runtime",
        "place": "here",
        "task": TASK,
        "queue": "default",
        "lane": LANE,
        "priority": 0,
        "arguments": "[[],{}]",
    }
    op = PutSchedule(
        name, trigger=trigger_text(trigger), rules=rules_text(rules), **usual | options
    )
    return store.do(op)


def fire(store: Any, limit: int = 100) -> Fired:
    """Fire the schedules that are due."""
    return fire_due(store, limit)


def set_state(store: Any, state: str, name: str = "tidy") -> str | None:
    """Pause, resume or remove a schedule."""
    return store.do(SetScheduleState(name, state, "ada", "why"))


def schedule(store: Any, name: str = "tidy") -> ScheduleRecord:
    """Return the record of a schedule."""
    (found,) = store.list_schedules(ScheduleFilter(name, removed=True))
    return found


def firings(store: Any, name: str = "tidy", limit: int = 1000) -> list[FiringRecord]:
    """Return the firings of a schedule, oldest first."""
    return store.list_firings(name, 2**62, limit)[::-1]


def ledger(store: Any, begin: int, name: str = "tidy") -> list[tuple[int, str, str | None]]:
    """Return the firings, in minutes since `begin`."""
    return [(((f.instant - begin) // MINUTE), f.outcome, f.reason) for f in firings(store, name)]


# -- firing --


def test_a_firing_shows_the_state_of_its_run(store, worker, clock):
    put(store, overlap="allow")
    for _ in range(3):
        clock.advance(60)
        fire(store)
    first, second, third = claim(store)
    succeed(store, first)
    fail(store, second)
    clock.advance(60)
    fire(store)
    set_state(store, "paused")
    clock.advance(60)
    set_state(store, "active")
    fire(store)

    states = {row.run_id: row.run_state for row in firings(store) if row.run_id is not None}
    skipped = [row.run_state for row in firings(store) if row.run_id is None]
    *_, last = (run_id for run_id in states)

    assert [states[each.run_id] for each in (first, second, third)] == [
        "succeeded",
        "failed",
        "running",
    ]
    assert states[last] == "queued"
    assert set(skipped) == {None}


def test_a_schedule_does_not_fire_before_its_time(store, clock):
    put(store)

    clock.advance(59.9)

    assert fire(store) == Fired(0, 0)
    assert store.peek().next_fire_in == pytest.approx(0.1 * SECOND, abs=1)


def test_a_due_instant_makes_one_run_and_one_row(store, worker, clock):
    put(store, priority=3, arguments='[[],{"a":1}]')
    begin = clock.now()
    clock.advance(60)

    assert fire(store) == Fired(1, 1)
    assert fire(store) == Fired(0, 0)

    (row,) = firings(store)
    assert (row.instant, row.last_instant, row.row) == (begin + MINUTE, begin + MINUTE, 1)
    assert (row.outcome, row.reason, row.version, row.fired_at) == ("run", None, 1, clock.now())
    run = run_of(store, row.run_id)
    assert (run.task, run.queue, run.lane, run.priority) == (TASK, "default", LANE, 3)
    assert run.arguments == '[[],{"a":1}]'
    assert run.tags == '{"schedule":"tidy"}'
    assert schedule(store).next_at == begin + 2 * MINUTE
    assert claimed_ids(store) == [row.run_id]


def test_a_schedule_with_one_instant_ends_after_it(store, clock):
    put(store, trigger=DateTrigger(clock.now() + 5 * MINUTE))
    clock.advance(300)

    assert fire(store) == Fired(1, 1)

    found = schedule(store)
    assert (found.state, found.next_at, found.look_at) == ("ended", None, None)
    assert store.peek().next_fire_in is None


def test_schedules_fire_in_bounded_rounds_with_the_most_overdue_first(store, clock):
    for n in range(7):
        put(store, f"s{n}", DateTrigger(clock.now() + n * SECOND))
    clock.advance(59)

    assert [fire(store, 3).runs for _ in range(4)] == [3, 3, 1, 0]
    assert len(listed_ids(store)) == 7


def test_schedules_are_listed_by_when_they_are_due_and_by_state(store, clock):
    for name, minutes in (("a", 9), ("b", 3), ("c", 6), ("d", 1)):
        put(store, name, DateTrigger(clock.now() + minutes * MINUTE))
    set_state(store, "paused", "d")

    assert [each.name for each in store.list_next_schedules(2)] == ["b", "c"]
    assert [each.name for each in store.list_schedules(ScheduleFilter(state="paused"))] == ["d"]


def test_eight_stores_that_fire_at_once_fire_every_instant_once(store, clock, open_another):
    stores = [store, *(open_another() for _ in range(7))]
    for n in range(20):
        put(store, f"s{n:02}")
    clock.advance(60)
    ready = threading.Barrier(len(stores))

    def look(each: Any) -> int:
        ready.wait()
        return sum(fire(each, 5).runs for _ in range(6))

    with ThreadPoolExecutor(len(stores)) as pool:
        fired = sum(pool.map(look, stores))

    assert fired == 20
    assert len(listed_ids(store)) == 20
    assert all(len(firings(store, f"s{n:02}")) == 1 for n in range(20))


def test_missed_instants_are_recorded_and_the_latest_is_caught_up(store, clock):
    put(store, trigger=IntervalTrigger(10 * MINUTE, UNANCHORED))
    begin = clock.now()
    clock.advance(39 * 60)

    assert fire(store) == Fired(1, 1)

    assert ledger(store, begin) == [
        (10, "skipped", "missed"),
        (20, "skipped", "missed"),
        (30, "caught_up", None),
    ]


def test_instants_that_were_missed_during_a_restart_follow_the_misfire_policy(store, clock):
    nightly = Cron("0 2 * * *", "UTC")

    def start() -> set[str]:
        """Put the schedules of the code, as a process does at its start."""
        return {
            put(store, misfire, nightly, misfire=misfire, overlap="allow", source="code").what
            for misfire in ("latest", "skip", "all")
        }

    def nights(name: str) -> list[tuple[float, str, str | None]]:
        return [((f.instant - two) / DAY, f.outcome, f.reason) for f in firings(store, name)]

    assert start() == {"created"}
    two = schedule(store, "latest").next_at
    clock.advance((two - clock.now()) / SECOND - 60)
    assert fire(store) == Fired(0, 0)

    clock.advance(6 * 60)  # From one minute before two to five minutes past two.
    assert start() == {"unchanged"}
    assert fire(store) == Fired(3, 2)
    clock.advance(2 * DAY_SECONDS)
    assert start() == {"unchanged"}
    assert fire(store) == Fired(3, 3)

    assert nights("latest") == [
        (0, "caught_up", None),
        (1, "skipped", "missed"),
        (2, "caught_up", None),
    ]
    assert nights("skip") == [(night, "skipped", "missed") for night in range(3)]
    assert nights("all") == [(night, "caught_up", None) for night in range(3)]


def test_a_schedule_with_an_unknown_time_zone_does_not_stop_the_others(store, clock, tables):
    put(store, "far")
    put(store, "near")
    tables.execute(
        """UPDATE duly_schedules SET trigger = '{"cron": "0 2 * * *", "tz": "Mars/Olympus"}'"""
        " WHERE name = 'far'"
    )
    clock.advance(60)

    assert fire(store) == Fired(2, 1)

    found = schedule(store, "far")
    assert found.state == "active"
    assert "Mars/Olympus" in (found.reason or "")
    assert found.look_at == clock.now() + MINUTE


# -- overlap --


def test_an_instant_is_skipped_while_the_last_run_is_live(store, worker, clock):
    put(store)
    begin = clock.now()
    for _ in range(3):
        clock.advance(60)
        fire(store)
    succeed(store, claim_one(store))
    clock.advance(60)
    fire(store)

    assert ledger(store, begin) == [
        (1, "run", None),
        (2, "skipped", "overlap"),
        (3, "skipped", "overlap"),
        (4, "run", None),
    ]


def test_with_overlap_queue_an_instant_waits_until_the_run_before_it_has_ended(
    store, worker, clock
):
    put(store, overlap="queue")
    begin = clock.now()
    for _ in range(3):
        clock.advance(60)
        fire(store)
    assert [row[1] for row in ledger(store, begin)] == ["run", "waiting", "waiting"]
    assert schedule(store).waiting == 2

    for _ in range(2):
        succeed(store, claim_one(store))
        assert claim(store) == []
        clock.advance(0.2)
        assert fire(store) == Fired(1, 1)

    assert [row[1] for row in ledger(store, begin)] == ["run", "run", "run"]
    assert schedule(store).waiting == 0
    assert len(claimed_ids(store)) == 1


def test_with_overlap_allow_runs_are_queued_at_the_same_time(store, worker, clock):
    put(store, overlap="allow")
    for _ in range(3):
        clock.advance(60)
        fire(store)

    assert len(claimed_ids(store)) == 3


# -- pauses --


def test_instants_during_a_pause_are_recorded_as_skipped_until_the_resume(store, clock):
    put(store)
    begin = clock.now()
    assert set_state(store, "paused") == "active"
    clock.advance(60)
    assert fire(store) == Fired(1, 0)
    clock.advance(60)
    # No worker fired schedules during this minute of the pause.
    assert set_state(store, "active") == "paused"
    clock.advance(60)
    fire(store)

    assert ledger(store, begin) == [
        (1, "skipped", "paused"),
        (2, "skipped", "paused"),
        (3, "run", None),
    ]
    acts = [
        (act.act, act.subject, act.actor, act.reason) for act in store.list_audit_entries(None, 10)
    ]
    assert acts == [
        ("resume schedule", "schedule tidy", "ada", "why"),
        ("pause schedule", "schedule tidy", "ada", "why"),
    ]


def test_a_schedule_whose_runs_keep_failing_pauses_itself_until_resumed(store, worker, clock):
    put(store, pause_after=2)
    for _ in range(3):
        clock.advance(60)
        fire(store)
        for found in claim(store):
            fail(store, found)
    assert [f.outcome for f in firings(store)] == ["run", "run", "skipped"]
    assert (schedule(store).state, schedule(store).reason) == ("paused", "its last 2 runs failed")

    set_state(store, "active")
    clock.advance(60)

    assert fire(store) == Fired(1, 1)
    assert schedule(store).reason is None


def test_a_change_does_not_resume_a_schedule_that_paused_itself(store, worker, clock):
    put(store, pause_after=1)
    clock.advance(60)
    fire(store)
    fail(store, claim_one(store))
    clock.advance(60)

    put(store, pause_after=3)

    assert [f.outcome for f in firings(store)] == ["run", "skipped"]
    assert schedule(store).state == "paused"


def test_an_action_that_changes_nothing_is_not_recorded(store, clock):
    put(store)
    put(store, "past", DateTrigger(clock.now()), overlap="allow")
    fire(store)

    assert set_state(store, "active") == "active"
    assert [set_state(store, "paused") for _ in range(2)] == ["active", "paused"]
    assert [set_state(store, state, "past") for state in ("paused", "active")] == ["ended"] * 2

    assert [act.act for act in store.list_audit_entries(None, 10)] == ["pause schedule"]


def test_a_waiting_instant_of_a_paused_schedule_runs_after_the_end_of_the_schedule(
    store, worker, clock
):
    put(store, overlap="queue", end=clock.now() + 2 * MINUTE)
    for _ in range(2):
        clock.advance(60)
        set_state(store, "active")
    set_state(store, "paused")
    assert (schedule(store).state, schedule(store).waiting) == ("paused", 1)

    succeed(store, claim_one(store))
    set_state(store, "active")
    clock.advance(1)

    assert fire(store) == Fired(1, 1)
    assert schedule(store).state == "ended"


def test_a_success_between_failures_prevents_the_automatic_pause(store, worker, clock):
    put(store, pause_after=2)
    for end in (fail, succeed, fail, fail):
        clock.advance(60)
        fire(store)
        end(store, claim_one(store))

    assert schedule(store).state == "active"
    clock.advance(60)
    fire(store)
    assert schedule(store).state == "paused"


# -- changes --


def test_putting_an_equal_schedule_changes_nothing(store, clock):
    put(store)
    before = schedule(store)
    clock.advance(30)

    assert put(store) == PutScheduleResult("unchanged", "runtime", "here")
    assert schedule(store) == before


def test_a_change_of_the_trigger_accounts_for_instants_of_the_old_one(store, clock):
    put(store)
    begin = clock.now()
    clock.advance(150)

    assert put(store, trigger=IntervalTrigger(10 * MINUTE, UNANCHORED)).what == "changed"

    assert ledger(store, begin) == [(1, "skipped", "missed"), (2, "run", None)]
    found = schedule(store)
    assert (found.version, found.next_at) == (2, begin + 150 * SECOND + 10 * MINUTE)


def test_new_arguments_do_not_change_the_next_instant(store, clock):
    put(store)
    begin = clock.now()
    clock.advance(30)

    assert put(store, arguments="[[],{}]", priority=9).what == "changed"

    found = schedule(store)
    assert (found.version, found.priority, found.next_at) == (2, 9, begin + MINUTE)


def test_a_schedule_stays_paused_after_a_change(store, clock):
    put(store)
    set_state(store, "paused")

    put(store, trigger=Cron("0 2 * * *", "UTC"))

    assert (schedule(store).state, schedule(store).reason) == ("paused", "why")


def test_a_schedule_stays_paused_after_a_change_of_its_start(store, clock):
    put(store)
    set_state(store, "paused")

    put(store, start=clock.now() + 10 * MINUTE)

    assert schedule(store).state == "paused"


@pytest.mark.parametrize("is_waiting", [True, False])
def test_a_change_that_ends_a_schedule_keeps_it_paused_while_an_instant_waits(
    store, worker, clock, is_waiting
):
    put(store, overlap="queue")
    for _ in range(1 + is_waiting):
        clock.advance(60)
        fire(store)
    set_state(store, "paused")

    put(store, overlap="queue", end=clock.now() - MINUTE)

    assert schedule(store).state == ("paused" if is_waiting else "ended")
    succeed(store, claim_one(store))
    clock.advance(60)
    fire(store)
    assert claim(store) == []


def test_a_change_by_code_or_at_run_time_follows_the_source_and_on_duplicate(store, clock):
    put(store, source="code", place="shop.py:3")

    assert put(store, source="runtime") == PutScheduleResult("refused", "code", "shop.py:3")
    assert put(store, source="code", on_duplicate="keep").what == "kept"
    assert put(store, source="code", on_duplicate="error").what == "refused"
    assert schedule(store).place == "shop.py:3"


def test_a_schedule_that_has_ended_can_be_created_again(store, clock):
    put(store, trigger=DateTrigger(clock.now()), overlap="allow")
    fire(store)

    later = DateTrigger(clock.now() + MINUTE)
    assert put(store, trigger=later, overlap="allow", on_duplicate="error").what == "changed"
    clock.advance(60)

    assert fire(store).runs == 1
    assert len(firings(store)) == 2


def test_a_removed_schedule_does_not_fire_and_its_firings_are_kept(store, clock):
    put(store, overlap="queue")
    for _ in range(2):
        clock.advance(60)
        fire(store)

    assert set_state(store, "removed") == "active"
    clock.advance(600)

    assert fire(store) == Fired(0, 0)
    assert [(f.outcome, f.reason) for f in firings(store)] == [
        ("run", None),
        ("skipped", "removed"),
    ]
    assert store.list_schedules(ScheduleFilter()) == []
    assert schedule(store).state == "removed"
    assert set_state(store, "active") is None
    assert put(store).what == "created"
    assert schedule(store).version == 2


def test_eight_stores_that_put_one_schedule_at_once_create_one(store, open_another):
    stores = [store, *(open_another() for _ in range(7))]
    ready = threading.Barrier(len(stores))

    def add(each: Any) -> str:
        ready.wait()
        return put(each).what

    with ThreadPoolExecutor(len(stores)) as pool:
        answers = sorted(pool.map(add, stores))

    assert answers == ["created"] + ["unchanged"] * 7
    trigger = read_trigger(schedule(store).trigger)
    assert isinstance(trigger, IntervalTrigger)
    assert schedule(store).next_at == trigger.anchor + MINUTE


# -- manual runs --


def test_a_paused_schedule_can_be_run_manually(store, worker, clock):
    put(store)
    set_state(store, "paused")

    run_id = store.do(RunSchedule("tidy", "ada"))

    assert state_of(store, run_id) == "queued"
    assert [(f.outcome, f.reason) for f in firings(store)] == [("run", "by ada")]
    assert store.apply([RunSchedule("nothing", "ada")]) == [None]


def test_a_backfill_runs_skipped_instants_and_no_instant_twice(store, worker, clock):
    put(store, misfire="skip")
    begin = clock.now()
    clock.advance(60)
    fire(store)
    clock.advance(600)
    fire(store)
    wanted = tuple(begin + n * MINUTE for n in range(-2, 12))

    first = store.do(BackfillSchedule("tidy", wanted, "ada"))
    again = store.do(BackfillSchedule("tidy", wanted, "ada"))

    ran = [f for f in firings(store) if f.outcome in {"run", "caught_up"}]
    assert len({f.run_id for f in ran}) == len(ran) == 14
    assert {f.run_id for f in ran} > set(first)
    assert again == []


def test_a_backfill_splits_rows_of_spans_so_that_every_instant_is_counted_once(
    store, worker, clock
):
    put(store, misfire="skip")
    begin = clock.now()
    clock.advance(300 * 60)
    fire(store)
    wanted = tuple(begin + n * MINUTE for n in (1, 2, 50, 199, 200, 250))

    runs = store.do(BackfillSchedule("tidy", wanted, "ada"))
    again = store.do(BackfillSchedule("tidy", wanted, "ada"))

    assert (len(runs), again) == (6, [])
    rows = firings(store)
    assert sum(f.row for f in rows) == 300
    assert tuple(f.instant for f in rows if f.outcome == "caught_up") == wanted
    ends = [(f.instant - begin, f.last_instant - begin) for f in rows if f.row > 1]
    assert ends == [(3 * MINUTE, 49 * MINUTE), (51 * MINUTE, 198 * MINUTE)]
    assert {f.reason for f in rows if f.outcome == "skipped"} == {"missed"}


def test_a_backfill_first_accounts_for_due_instants_and_skips_future_ones(store, worker, clock):
    put(store)
    begin = clock.now()
    clock.advance(200 * 60)
    wanted = tuple(begin + n * MINUTE for n in (1, 2, 200, 201, 202))

    runs = store.do(BackfillSchedule("tidy", wanted, "ada"))

    assert len(runs) == 2
    assert sum(f.row for f in firings(store)) == 200
    assert schedule(store).next_at == begin + 201 * MINUTE


# -- long absences --


def test_a_long_absence_is_handled_in_bounded_pieces(store, clock, monkeypatch):
    put(store, trigger=Cron("* * * * * *", "UTC", seconds_field="first"))
    clock.advance(2 * PLAN_INSTANTS + 500)
    made = []
    after = Cron.after

    def counted(self: Cron, instant: int) -> Iterator[int]:
        for found in after(self, instant):
            made.append(found)
            yield found

    monkeypatch.setattr(Cron, "after", counted)
    answers, work = [], []
    for _ in range(3):
        made.clear()
        answers.append(set_state(store, "paused"))
        work.append(len(made))

    assert [isinstance(each, ScheduleBehind) for each in answers] == [True, True, False]
    assert max(work) <= PLAN_INSTANTS + 3
    rows = firings(store)
    assert sum(f.row for f in rows) == 2 * PLAN_INSTANTS + 500
    assert len(rows) <= SINGLE_FIRINGS + 4
    assert rows[-1].outcome == "run"
    assert len(store.list_audit_entries(None, 10)) == 1
    assert schedule(store).state == "paused"


# -- pruning --


def test_old_firings_are_pruned_and_do_not_fire_again(store, clock):
    put(store)
    clock.advance(60)
    fire(store)
    clock.advance(8 * DAY_SECONDS)

    store.do(Prune(7 * DAY_SECONDS * SECOND, 100))

    assert firings(store) == []
    assert schedule(store).next_at is not None


def test_the_audit_accepts_a_firing_whose_dead_letter_was_pruned_early(store, clock, worker):
    put(store)
    clock.advance(60)
    fire(store)
    fail(store, claim_one(store))
    enqueue_and_succeed(store)
    clock.advance(DAY_SECONDS / 2)

    store.do(Prune(7 * DAY_SECONDS * SECOND, 100, dead_older_than=0))

    assert len(firings(store)) == 1
    assert list(store.audit(10)) == []


# -- regressions --


def test_a_schedule_that_cannot_be_planned_does_not_stop_the_others(store, clock, tables):
    put(store, "bad")
    put(store, "good")
    tables.execute("UPDATE duly_schedules SET rules = 'nonsense' WHERE name = 'bad'")
    clock.advance(60)

    assert fire(store) == Fired(2, 1)
    assert firings(store, "good")[0].outcome == "run"


def test_a_pause_that_waits_for_a_firing_sees_the_run_of_that_firing(store, clock, open_another):
    """A statement of PostgreSQL that waits for a lock would see the other tables as they were."""
    put(store, trigger=IntervalTrigger(SECOND, UNANCHORED))
    clock.advance(1)
    other = open_another()
    is_firing, may_continue = threading.Event(), threading.Event()

    def hold() -> None:
        faultpoints.disarm()
        is_firing.set()
        may_continue.wait(TIMEOUT)

    faultpoints.arm("operate.before_commit", hold)
    first = threading.Thread(target=fire, args=(store,))
    first.start()
    assert is_firing.wait(TIMEOUT)
    clock.advance(1)
    second = threading.Thread(target=set_state, args=(other, "paused"))
    second.start()
    time.sleep(0.2)  # So that the pause waits, on databases on which it has to.
    may_continue.set()
    first.join()
    second.join()

    assert [f.outcome for f in firings(store)].count("run") == 1


def test_instants_that_wait_do_not_run_during_a_pause(store, worker, clock):
    put(store, overlap="queue")
    for _ in range(3):
        clock.advance(60)
        fire(store)
    set_state(store, "paused")
    succeed(store, claim_one(store))
    clock.advance(60)
    fire(store)
    assert claim(store) == []

    set_state(store, "active")
    clock.advance(1)
    fire(store)

    assert len(claim(store)) == 1


def test_an_instant_that_waits_runs_after_a_change_of_the_trigger(store, worker, clock):
    put(store, overlap="queue")
    for _ in range(2):
        clock.advance(60)
        fire(store)
    succeed(store, claim_one(store))

    put(store, trigger=Cron("0 0 1 1 *", "UTC"), overlap="queue")

    assert fire(store) == Fired(1, 1)


def test_a_change_of_the_rules_does_not_change_the_next_instant(store, clock):
    put(store)
    before = schedule(store)
    clock.advance(45)

    put(store, pause_after=5)

    after = schedule(store)
    assert (after.trigger, after.next_at) == (before.trigger, before.next_at)


def test_runs_of_a_schedule_expire_after_the_time_of_its_task(store, worker, clock):
    put(store, expires=5 * SECOND)
    clock.advance(60)
    fire(store)

    (row,) = firings(store)
    assert run_of(store, row.run_id).expires_at == clock.now() + 5 * SECOND


def test_a_schedule_that_has_ended_is_replaced_even_with_on_duplicate_keep(store, clock):
    put(store, trigger=DateTrigger(clock.now()), overlap="allow")
    fire(store)

    later = DateTrigger(clock.now() + MINUTE)
    assert put(store, trigger=later, overlap="allow", on_duplicate="keep").what == "changed"
    assert schedule(store).state == "active"
