"""The plan for each due instant of a schedule, a pure function of record and time."""

from itertools import pairwise, takewhile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.core import schedule as schedule_module
from duly.core.cron import Cron
from duly.core.record import ScheduleRecord
from duly.core.schedule import (
    SECOND,
    DateTrigger,
    IntervalTrigger,
    Plan,
    PlannedFiring,
    PreviousRuns,
    Rules,
    Trigger,
    check_interval,
    first_instant,
    instants,
    next_instant,
    plan,
    read_rules,
    read_trigger,
    row_of,
    rules_text,
    split_row,
    trigger_text,
)
from duly.core.schedule_plans import DueSchedule, plan_due
from duly.errors import BadSchedule
from duly.limits import CATCH_UP, LOOK_INSTANTS, PLAN_INSTANTS, SINGLE_FIRINGS

MINUTE, HOUR = 60 * SECOND, 3600 * SECOND
MINUTELY = IntervalTrigger(MINUTE, 0)
FREE, BUSY = (
    PreviousRuns(is_busy=False, has_failed=False),
    PreviousRuns(is_busy=True, has_failed=False),
)


def schedule(trigger: Trigger = MINUTELY, next_at: int | None = MINUTE, **fields: Any):
    rules = Rules(**{name: fields.pop(name) for name in list(fields) if name in RULES})
    usual = {
        "name": "tidy",
        "version": 1,
        "source": "code",
        "place": "here",
        "task": "tidy",
        "queue": "default",
        "lane": "thread",
        "priority": 0,
        "arguments": "[[],{}]",
        "expires": None,
        "trigger": trigger_text(trigger),
        "rules": rules_text(rules),
        "state": "active",
        "reason": None,
        "next_at": next_at,
        "look_at": next_at,
        "waiting": 0,
        "last_run_id": None,
        "created_at": 0,
        "updated_at": 0,
    }
    return ScheduleRecord(**usual | fields)


RULES = Rules.__dataclass_fields__


def outcomes(found: Plan) -> list[tuple[int, str, str | None]]:
    return [(f.instant // MINUTE, f.outcome, f.reason) for f in found.firings]


# -- on time --


def test_a_schedule_does_nothing_before_its_next_instant():
    assert plan(schedule(), MINUTE - 1, FREE) == Plan([], MINUTE, MINUTE)


def test_a_due_instant_runs_and_the_cursor_moves_past_it():
    assert plan(schedule(), MINUTE, FREE) == Plan(
        [PlannedFiring(MINUTE, "run")], 2 * MINUTE, 2 * MINUTE
    )


def test_a_single_instant_in_the_past_runs_once():
    at = DateTrigger(5 * MINUTE)

    assert first_instant("x", at, Rules(), 60 * MINUTE) == (5 * MINUTE, 5 * MINUTE)
    found = plan(schedule(at, 5 * MINUTE), 60 * MINUTE, FREE)
    assert found == Plan([PlannedFiring(5 * MINUTE, "caught_up")], None, None)


def test_a_stored_instant_that_the_trigger_no_longer_has_is_passed_over():
    # This happens if the rules of its zone have changed.
    found = plan(schedule(Cron("0 2 * * *", "UTC"), HOUR), HOUR, FREE)

    assert found == Plan([], 2 * HOUR, 2 * HOUR)


def test_an_instant_that_moved_before_the_cursor_is_accounted_for():
    # This happens if the rules of its zone have changed.
    daily = Cron("0 1 * * *", "UTC")

    found = plan(schedule(daily, 26 * HOUR), 26 * HOUR, FREE)

    assert found == Plan([PlannedFiring(25 * HOUR, "caught_up")], 49 * HOUR, 49 * HOUR)
    skipping = plan(schedule(daily, 26 * HOUR, misfire="skip"), 26 * HOUR, FREE)
    assert skipping.firings == [PlannedFiring(25 * HOUR, "skipped", "missed")]
    later = plan(schedule(daily, 26 * HOUR), 49 * HOUR, FREE)
    assert later.firings == [
        PlannedFiring(25 * HOUR, "skipped", "missed"),
        PlannedFiring(49 * HOUR, "run"),
    ]


def test_an_instant_that_moved_and_is_still_in_the_future_is_the_next_instant():
    waiting = schedule(Cron("0 1 * * *", "UTC"), 26 * HOUR, overlap="queue", waiting=1)

    found = plan(waiting, 24 * HOUR, FREE)

    assert (found.firings, found.next_at) == ([], 25 * HOUR)


def test_a_window_has_a_first_and_a_last_instant():
    rules = Rules(start=3 * MINUTE, end=5 * MINUTE)

    assert list(instants(MINUTELY, rules, 0)) == [3 * MINUTE, 4 * MINUTE, 5 * MINUTE]
    assert first_instant("x", MINUTELY, rules, 0) == (3 * MINUTE, 3 * MINUTE)
    last = plan(schedule(next_at=5 * MINUTE, end=5 * MINUTE), 5 * MINUTE, FREE)
    assert (last.next_at, last.look_at) == (None, None)


def test_an_interval_counts_elapsed_time_from_its_anchor():
    every = IntervalTrigger(7 * MINUTE, 3 * MINUTE)

    assert every.next_after(0) == 10 * MINUTE
    assert every.next_after(10 * MINUTE) == 17 * MINUTE
    assert every.next_after(10 * MINUTE - 1) == 10 * MINUTE


# -- missed instants --


def test_only_the_latest_missed_instant_is_caught_up():
    found = plan(schedule(), 4 * MINUTE + 61 * SECOND, FREE)

    assert outcomes(found) == [
        (1, "skipped", "missed"),
        (2, "skipped", "missed"),
        (3, "skipped", "missed"),
        (4, "skipped", "missed"),
        (5, "run", None),
    ]
    hourly = schedule(IntervalTrigger(HOUR, 0), HOUR)
    assert [f.outcome for f in plan(hourly, 3 * HOUR - 1, FREE).firings] == ["skipped", "caught_up"]


def test_an_instant_later_than_the_grace_is_skipped():
    late = schedule(IntervalTrigger(HOUR, 0), HOUR, grace=10 * MINUTE)

    assert outcomes(plan(late, HOUR + 10 * MINUTE, FREE)) == [(60, "caught_up", None)]
    assert outcomes(plan(late, HOUR + 10 * MINUTE + 1, FREE)) == [(60, "skipped", "missed")]


def test_a_schedule_with_misfire_skip_runs_only_instants_on_time():
    skipping = schedule(IntervalTrigger(HOUR, 0), HOUR, misfire="skip")

    assert outcomes(plan(skipping, HOUR + 5 * MINUTE, FREE)) == [(60, "skipped", "missed")]
    assert outcomes(plan(skipping, HOUR + 5 * SECOND, FREE)) == [(60, "run", None)]


def test_misfire_all_catches_up_the_newest_instants_up_to_max_catch_up():
    found = plan(
        schedule(misfire="all", max_catch_up=2, overlap="allow"), 4 * MINUTE + 30 * SECOND, FREE
    )

    assert outcomes(found) == [
        (1, "skipped", "missed"),
        (2, "skipped", "missed"),
        (3, "caught_up", None),
        (4, "run", None),
    ]


def test_a_long_absence_is_accounted_for_in_several_looks_and_few_rows():
    absent = schedule(Cron("* * * * *", "UTC"))
    now = (3 * PLAN_INSTANTS + 10) * MINUTE
    accounted, looks = 0, 0
    while True:
        found = plan(absent, now, FREE)
        accounted += sum(f.row for f in found.firings)
        looks += 1
        assert len(found.firings) <= SINGLE_FIRINGS + 2
        if found.look_at > now:
            break
        assert {f.outcome for f in found.firings} == {"skipped"}
        absent = absent._replace(next_at=found.next_at)

    assert accounted == 3 * PLAN_INSTANTS + 10
    assert looks == 4
    assert found.firings[-1] == PlannedFiring(now, "run")


def test_the_instants_of_an_interval_are_counted_without_computing_each_one(monkeypatch):
    made = []
    monkeypatch.setattr(schedule_module, "next_instant", lambda *asked: made.append(asked) or 0)
    week = 7 * 24 * 3600
    absent = schedule(
        IntervalTrigger(SECOND, 0), SECOND, max_catch_up=50, misfire="all", overlap="allow"
    )

    found = plan(absent, week * SECOND, FREE)

    assert sum(f.row for f in found.firings) == week
    assert len(found.firings) == 1 + SINGLE_FIRINGS + 50
    assert len(made) <= 1
    assert found.look_at != week * SECOND


@pytest.mark.parametrize("trigger", [IntervalTrigger(MINUTE, 0), Cron("* * * * *", "UTC")])
def test_a_row_of_instants_can_be_split(trigger):
    row = row_of(trigger, 3 * MINUTE, 9 * MINUTE, count=7)

    pieces = split_row(
        row, [MINUTE, 3 * MINUTE, 5 * MINUTE, 5 * MINUTE + 1, 6 * MINUTE, 9 * MINUTE]
    )

    assert [[at // MINUTE for at in piece] for piece in pieces] == [[4], [7, 8]]
    assert split_row(row, [2 * MINUTE]) == [row]


@pytest.mark.parametrize(
    "trigger", [IntervalTrigger(MINUTE, 1), Cron("*/2 * * * *", "UTC"), DateTrigger(MINUTE)]
)
def test_a_row_of_another_trigger_is_detected_by_its_instants(trigger):
    assert row_of(trigger, 3 * MINUTE, 9 * MINUTE, count=7) == ()


# -- instants during the previous run --


def test_an_instant_during_the_previous_run_is_skipped_by_default():
    assert outcomes(plan(schedule(), MINUTE, BUSY)) == [(1, "skipped", "overlap")]


def test_an_instant_during_the_previous_run_runs_with_overlap_allow():
    assert outcomes(plan(schedule(overlap="allow"), MINUTE, BUSY)) == [(1, "run", None)]


def test_an_instant_during_the_previous_run_waits_with_overlap_queue():
    found = plan(schedule(overlap="queue"), MINUTE, BUSY)

    assert outcomes(found) == [(1, "waiting", "overlap")]
    assert (found.look_at, found.release) == (MINUTE + SECOND // 5, False)


def test_the_oldest_waiting_instant_is_released_when_the_previous_run_has_ended():
    waiting = schedule(overlap="queue", waiting=2)
    found = plan(waiting, MINUTE, FREE)

    assert found.release
    assert outcomes(found) == [(1, "waiting", "overlap")]
    assert not plan(waiting, MINUTE, BUSY).release


def test_at_most_a_thousand_instants_wait():
    found = plan(schedule(overlap="queue", waiting=CATCH_UP), MINUTE, BUSY)

    assert outcomes(found) == [(1, "skipped", "overlap")]


# -- pauses --


def test_a_paused_schedule_accounts_for_its_instants():
    found = plan(schedule(state="paused"), 2 * MINUTE, FREE)

    assert outcomes(found) == [(1, "skipped", "paused"), (2, "skipped", "paused")]
    assert found.next_at == 3 * MINUTE


def test_a_schedule_pauses_itself_when_its_runs_keep_failing():
    found = plan(schedule(pause_after=3), MINUTE, PreviousRuns(is_busy=False, has_failed=True))

    assert outcomes(found) == [(1, "skipped", "paused")]
    assert found.pause == "its last 3 runs failed"


# -- jitter --


def test_the_jitter_of_an_instant_is_the_same_in_every_process():
    late = schedule(jitter=30 * SECOND)
    seen = set()
    for minute in range(1, 50):
        asked = late._replace(next_at=minute * MINUTE)
        (look_at,) = {plan(asked, minute * MINUTE - 1, FREE).look_at for _ in range(2)}
        assert look_at is not None
        assert minute * MINUTE <= look_at < minute * MINUTE + 30 * SECOND
        assert plan(asked, look_at - 1, FREE).firings == []
        assert plan(asked, look_at, FREE).firings == [PlannedFiring(minute * MINUTE, "run")]
        seen.add(look_at - minute * MINUTE)
    assert len(seen) > 40


# -- every instant once --

triggers = st.one_of(
    st.builds(
        IntervalTrigger,
        st.integers(SECOND, 3 * HOUR),
        st.integers(0, 10 * HOUR).map(lambda n: n - n % 7),
    ),
    st.sampled_from(
        [
            Cron("*/5 * * * *", "UTC"),
            Cron("30 2 * * *", "Europe/Paris"),
            Cron("@hourly", "Asia/Tokyo"),
        ]
    ),
)
rules = st.builds(
    Rules,
    misfire=st.sampled_from(["latest", "all", "skip"]),
    grace=st.none() | st.integers(0, HOUR),
    max_catch_up=st.integers(1, 5),
    overlap=st.sampled_from(["skip", "queue", "allow"]),
    jitter=st.sampled_from([0, 0, 20 * SECOND]),
)


@given(
    triggers,
    rules,
    st.lists(st.tuples(st.integers(0, 5 * HOUR), st.booleans(), st.booleans()), max_size=12),
)
def test_every_instant_is_accounted_for_once_regardless_of_looks_and_pauses(trigger, rules, looks):
    begin = 1_700_000_000 * SECOND
    next_at, look_at = first_instant("tidy", trigger, rules, begin)
    asked = schedule(trigger, next_at)._replace(rules=rules_text(rules), look_at=look_at)
    accounted, now = 0, begin
    last = begin
    for step, is_busy, is_paused in looks:
        now += step
        asked = asked._replace(state="paused" if is_paused else "active")
        found = plan(asked, now, PreviousRuns(is_busy, has_failed=False))
        for firing in found.firings:
            assert firing.instant > last
            last = max(firing.instant, firing.last_instant)
            accounted += firing.row
        waiting = sum(f.outcome == "waiting" for f in found.firings)
        asked = asked._replace(
            next_at=found.next_at,
            look_at=found.look_at,
            waiting=asked.waiting + waiting - found.release,
        )
        assert asked.waiting >= 0
    due = list(
        takewhile(lambda instant: instant < (asked.next_at or 0), instants(trigger, rules, begin))
    )

    assert accounted == len(due)
    assert all(one < other for one, other in pairwise(due))


@given(st.integers(-11, 11), st.integers(0, 23), st.integers(1, 20 * 24), st.integers(1, 30))
def test_a_change_of_the_time_zone_neither_repeats_nor_skips_a_day(shift, hour, moved_after, step):
    # This simulates a change in the rules of a zone. Etc/GMT-3 is three hours east of Greenwich.
    before = Cron(f"30 {hour} * * *", "UTC")
    after = Cron(f"30 {hour} * * *", f"Etc/GMT{shift:+}")
    next_at, look_at = first_instant("tidy", before, Rules(), 0)
    asked = schedule(before, next_at, misfire="all", overlap="allow")._replace(look_at=look_at)
    seen: list[int] = []
    for now in range(0, 24 * HOUR * 24, step * HOUR):
        if now >= moved_after * HOUR:
            asked = asked._replace(trigger=trigger_text(after))
        if asked.look_at <= now:
            found = plan(asked, now, FREE)
            seen += [firing.instant for firing in found.firings]
            asked = asked._replace(next_at=found.next_at, look_at=found.look_at)

    assert all(12 * HOUR < later - one < 36 * HOUR for one, later in pairwise(seen))
    assert asked.next_at - seen[-1] < 36 * HOUR


# -- stored triggers and rules --


@pytest.mark.parametrize(
    "trigger",
    [Cron("0 2 * * *", "Europe/Paris"), IntervalTrigger(5 * MINUTE, 17), DateTrigger(99 * HOUR)],
)
def test_a_stored_trigger_and_its_rules_are_restored(trigger):
    read = read_trigger(trigger_text(trigger))

    assert trigger_text(read) == trigger_text(trigger)
    assert next_instant(read, Rules(), 0) == next_instant(trigger, Rules(), 0)
    assert read_rules(rules_text(Rules(jitter=5, end=9))) == Rules(jitter=5, end=9)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"misfire": "never"}, "misfire must be one of latest, all, skip"),
        ({"overlap": "both"}, "overlap must be one of skip, queue, allow"),
        ({"max_catch_up": 0}, "max_catch_up"),
        ({"max_catch_up": 1001}, "max_catch_up"),
        ({"max_catch_up": 2.5}, "max_catch_up"),
        ({"pause_after": True}, "pause_after"),
        ({"pause_after": 1.5}, "pause_after"),
        ({"pause_after": 0}, "pause_after"),
        ({"start": 5, "end": 5}, "before its end"),
    ],
)
def test_invalid_rules_are_refused(options, problem):
    with pytest.raises(BadSchedule, match=problem):
        Rules(**options)


@pytest.mark.parametrize("seconds", [0, 0.5, -1, float("nan"), float("inf"), 400 * 86_400])
def test_an_interval_has_bounds(seconds):
    with pytest.raises(BadSchedule, match="interval"):
        check_interval(seconds)


@pytest.mark.parametrize(
    ("interval", "words"),
    [(1, "second"), (5, "5 seconds"), (60, "minute"), (300, "5 minutes"), (7200, "2 hours"),
     (86_400, "day"), (90, "90 seconds")],
)  # fmt: skip
def test_an_interval_has_a_description_in_words(interval, words):
    assert IntervalTrigger(interval * SECOND, 0).in_words() == f"Every {words}"


# -- one look at many schedules --


def found(absent: ScheduleRecord, now: int) -> list[DueSchedule]:
    return [DueSchedule(absent._replace(name=f"s{n}"), FREE, now) for n in range(20)]


def test_a_look_plans_only_schedules_within_its_budget_of_instants():
    absent = schedule(Cron("* * * * *", "UTC"))

    planned = plan_due(found(absent, 2 * PLAN_INSTANTS * MINUTE))

    assert len(planned) == LOOK_INSTANTS // PLAN_INSTANTS
    assert all(each.is_behind for each in planned)


def test_an_interval_of_any_age_uses_one_instant_of_the_budget():
    absent = schedule(IntervalTrigger(SECOND, 0))

    planned = plan_due(found(absent, 10**9 * SECOND)[:9])

    assert len(planned) == 9
    assert not any(each.is_behind for each in planned)


def test_a_look_plans_no_more_runs_than_its_budget_of_rows_allows():
    absent = schedule(Cron("* * * * *", "UTC"), misfire="all", max_catch_up=1000, overlap="allow")

    planned = plan_due(found(absent, 700 * MINUTE))

    assert [len(each.plan.firings) for each in planned] == [700, 300]
    assert [each.is_behind for each in planned] == [False, True]
