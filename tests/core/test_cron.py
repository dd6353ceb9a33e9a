"""The instants of a cron expression, across every change of the clock in every time zone."""

import os
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest
from cronsim import CronSim

from duly.core.cron import Cron
from duly.errors import BadSchedule

FIRST, LAST = datetime(2025, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
EVERY_CHANGE = float(os.environ.get("DULY_TEST_SCALE", "1")) > 1
"""Otherwise the tests use one change in five, beginning with the first of each zone."""
SECOND = timedelta(seconds=1)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
WEEK = 7 * DAY


def micros(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def moment(instant: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=instant)


def between(cron: Cron, begin: datetime, end: datetime) -> list[datetime]:
    """Return the instants in (begin, end]."""
    found, instant = [], micros(begin)
    while (following := cron.next_after(instant)) is not None and moment(following) <= end:
        assert following > instant
        instant = following
        found.append(moment(instant))
    iterated = takewhile(micros(end).__ge__, cron.after(micros(begin)))
    assert [moment(instant) for instant in iterated] == found
    return found


def local(zone: str, *fields: int, fold: int = 0) -> datetime:
    return datetime(*fields, tzinfo=ZoneInfo(zone), fold=fold).astimezone(UTC)  # type: ignore[misc]


@pytest.mark.parametrize("expression", ["*/15 * * * *", "30 2 * * *", "30 */2 * * *"])
@pytest.mark.parametrize("zone", ["Europe/Paris", "Australia/Lord_Howe", "Africa/Casablanca"])
def test_iterated_instants_equal_single_steps_for_a_year(expression, zone):
    cron = Cron(expression, zone)

    assert between(cron, FIRST, FIRST + 52 * WEEK)


def test_the_iteration_ends_at_the_end_of_the_calendar():
    cron = Cron("0 0 1 * *", "UTC")
    last_months = list(cron.after(micros(datetime(9999, 9, 15, tzinfo=UTC))))

    assert [moment(instant).month for instant in last_months] == [10, 11, 12]


def test_the_iteration_parses_an_expression_once_per_offset_of_its_zone(monkeypatch):
    begun = []
    monkeypatch.setattr(
        "duly.core.cron.CronSim", lambda *given: begun.append(given) or CronSim(*given)
    )
    cron = Cron("* * * * *", "Europe/Paris")

    list(islice(cron.after(micros(FIRST)), 10_000))

    assert len(begun) < 20


# -- parsing an expression --


def test_an_instant_is_always_strictly_later():
    cron = Cron("0 2 * * *", "UTC")
    due = datetime(2025, 3, 1, 2, tzinfo=UTC)

    assert cron.next_after(micros(due) - 1) == micros(due)
    assert cron.next_after(micros(due)) == micros(due + DAY)


@pytest.mark.parametrize(
    ("expression", "due"),
    [
        ("@yearly", datetime(2026, 1, 1, tzinfo=UTC)),
        ("@monthly", datetime(2025, 6, 1, tzinfo=UTC)),
        ("@weekly", datetime(2025, 5, 18, tzinfo=UTC)),
        ("@daily", datetime(2025, 5, 15, tzinfo=UTC)),
        ("@midnight", datetime(2025, 5, 15, tzinfo=UTC)),
        ("@Hourly", datetime(2025, 5, 14, 11, tzinfo=UTC)),
        ("30 7 * * MON-FRI", datetime(2025, 5, 15, 7, 30, tzinfo=UTC)),
    ],
)
def test_shortcuts_and_names_of_weekdays_are_accepted(expression, due):
    now = datetime(2025, 5, 14, 10, 20, 30, tzinfo=UTC)

    assert moment(Cron(expression, "UTC").next_after(micros(now)) or 0) == due


@pytest.mark.parametrize(
    ("expression", "place"), [("*/20 * * * * *", "first"), ("* * * * * */20", "last")]
)
def test_seconds_field_selects_the_seconds_of_six_fields(expression, place):
    cron = Cron(expression, "UTC", seconds_field=place)
    begin = datetime(2025, 5, 14, 10, 20, 30, tzinfo=UTC)

    fires = between(cron, begin, begin + MINUTE)

    assert fires == [begin + 10 * SECOND, begin + 30 * SECOND, begin + 50 * SECOND]
    assert cron.expression == "*/20 * * * * *", "one form is stored"
    assert cron.with_seconds_last == "* * * * * */20"


@pytest.mark.parametrize("expression", ["* * * * * *", "* * * * * */20", "*/20 * * * * *"])
def test_an_expression_with_six_fields_is_refused_without_seconds_field(expression):
    with pytest.raises(BadSchedule, match=r'six fields.*seconds_field="first"'):
        Cron(expression, "UTC")


@pytest.mark.parametrize("place", ["first", "last"])
def test_seconds_field_is_ignored_for_five_fields(place):
    cron = Cron("0 2 * * *", "UTC", seconds_field=place)

    assert (cron.expression, cron.with_seconds_last) == ("0 2 * * *", "0 2 * * *")


@pytest.mark.parametrize("place", ["middle", "", 30])
def test_a_seconds_field_other_than_first_or_last_is_refused(place):
    with pytest.raises(BadSchedule, match="seconds_field must be"):
        Cron("* * * * * *", "UTC", seconds_field=place)


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "60 * * * *", "0 0 31 2 *", "@sometimes", "a b c d e", "0 0 0 * *"],
)
def test_an_expression_that_is_invalid_or_never_due_is_refused(expression):
    with pytest.raises(BadSchedule, match="cron expression"):
        Cron(expression, "UTC")


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc/passwd", "/etc/localtime", "a\0b"])
def test_an_unknown_zone_is_refused(zone):
    with pytest.raises(BadSchedule, match="no time zone"):
        Cron("0 2 * * *", zone)


def test_an_expression_has_a_description_in_words():
    assert Cron("0 2 * * *", "UTC").in_words() == "At 02:00 every day"
    assert Cron("@daily", "UTC").in_words() == "At 00:00 every day"


# -- changes of the clock --


def test_a_skipped_time_of_day_fires_at_the_first_valid_moment():
    fires = between(
        Cron("30 2 * * *", "Europe/Berlin"),
        local("Europe/Berlin", 2025, 3, 29, 12),
        local("Europe/Berlin", 2025, 3, 31, 12),
    )

    assert fires == [
        local("Europe/Berlin", 2025, 3, 30, 3),
        local("Europe/Berlin", 2025, 3, 31, 2, 30),
    ]


def test_a_repeated_time_of_day_fires_once():
    fires = between(
        Cron("30 2 * * *", "Europe/Berlin"),
        local("Europe/Berlin", 2025, 10, 25, 12),
        local("Europe/Berlin", 2025, 10, 27, 12),
    )

    assert fires == [
        local("Europe/Berlin", 2025, 10, 26, 2, 30, fold=0),
        local("Europe/Berlin", 2025, 10, 27, 2, 30),
    ]


def test_a_repeated_time_of_day_with_seconds_fires_once():
    fires = between(
        Cron("15 30 2 * * *", "Europe/Berlin", seconds_field="first"),
        local("Europe/Berlin", 2025, 10, 25, 12),
        local("Europe/Berlin", 2025, 10, 26, 12),
    )

    assert fires == [local("Europe/Berlin", 2025, 10, 26, 2, 30, 15, fold=0)]


def test_quarters_of_an_hour_follow_elapsed_time_when_the_clock_is_set_back():
    begin = local("Europe/Berlin", 2025, 10, 26, 1, 50)
    fires = between(Cron("*/15 * * * *", "Europe/Berlin"), begin, begin + 3 * HOUR)

    assert fires == [begin + 10 * MINUTE + n * 15 * MINUTE for n in range(12)]


def test_a_fixed_hour_with_starred_minutes_fires_whenever_the_clock_shows_it():
    fires = between(
        Cron("*/30 2 * * *", "Europe/Berlin"),
        local("Europe/Berlin", 2025, 10, 26),
        local("Europe/Berlin", 2025, 10, 27),
    )

    first = local("Europe/Berlin", 2025, 10, 26, 2, fold=0)
    assert fires == [first + n * 30 * MINUTE for n in range(4)]


@cache
def changes(zone: str) -> tuple[datetime, ...]:
    """Return every change of a zone's offset in the tested years, to the minute."""
    tz = ZoneInfo(zone)
    found, day, offset = [], FIRST, FIRST.astimezone(tz).utcoffset()
    while day < LAST:
        before, offset = offset, (day + WEEK).astimezone(tz).utcoffset()
        if before != offset:
            low, high = day, day + WEEK
            while high - low > MINUTE:
                middle = low + (high - low) // (2 * MINUTE) * MINUTE
                same = middle.astimezone(tz).utcoffset() == low.astimezone(tz).utcoffset()
                low, high = (middle, high) if same else (low, middle)
            found.append(high)
        day += WEEK
    return tuple(found)


def zones_by_rules() -> list[str]:
    """Return one zone for each distinct set of rules."""
    known: dict[object, str] = {}
    for zone in sorted(available_timezones() - {"localtime"}):
        tz = ZoneInfo(zone)
        rules = tuple((at, at.astimezone(tz).utcoffset()) for at in changes(zone))
        known.setdefault((FIRST.astimezone(tz).utcoffset(), rules), zone)
    return sorted(known.values())


ZONES = zones_by_rules()


@cache
def clock_around(zone: str) -> list[list[tuple[datetime, datetime]]]:
    """Return the local time in the minutes around each change, or on one day without changes."""
    tz = ZoneInfo(zone)
    days = changes(zone)[:: 1 if EVERY_CHANGE else 5] or (datetime(2025, 7, 1, 12, tzinfo=UTC),)
    return [
        [
            (at, at.astimezone(tz).replace(tzinfo=None))
            for at in (change + n * MINUTE for n in range(-27 * 60, 27 * 60))
        ]
        for change in days
    ]


@pytest.mark.scaled
@pytest.mark.parametrize("zone", ZONES)
def test_starred_minutes_fire_whenever_the_clock_shows_them(zone):
    cron = Cron("*/20 * * * *", zone)
    for clock in clock_around(zone):
        shown = [at for at, here in clock[20 * 60 : -20 * 60] if here.minute % 20 == 0]

        assert between(cron, clock[20 * 60 - 1][0], clock[-20 * 60 - 1][0]) == shown


@pytest.mark.scaled
@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("time", [(0, 0), (0, 30), (1, 15), (2, 30), (3, 0)])
def test_a_time_of_day_fires_once_on_every_local_day(zone, time):
    hour, minute = time
    tz = ZoneInfo(zone)
    cron = Cron(f"{minute} {hour} * * *", zone)
    for clock in clock_around(zone):
        shown: dict[object, datetime] = {}
        days = sorted({here.date() for _, here in clock})[1:-1]
        for at, here in clock:
            if (here.hour, here.minute) >= (hour, minute):
                shown.setdefault(here.date(), at)

        fires = between(cron, clock[0][0] - MINUTE, clock[-1][0])

        assert [f for f in fires if f.astimezone(tz).date() in days] == [
            shown[day] for day in days if day in shown
        ]


@pytest.mark.parametrize("zone", ["Europe/Paris", "America/New_York", "Australia/Lord_Howe"])
@pytest.mark.parametrize("expression", ["*/7 * * * *", "30 2 * * *", "*/30 1 * * *", "0 */2 * * *"])
def test_the_instants_do_not_depend_on_the_start_of_the_search(zone, expression):
    cron = Cron(expression, zone)
    for change in changes(zone)[:2]:
        begin, end = change - 30 * HOUR, change + 30 * HOUR
        fires = between(cron, begin, end)
        for n in range(0, 60 * 60, 7):
            start = begin + n * MINUTE
            expected = next((f for f in fires if f > start), None)
            if expected is not None:
                assert moment(cron.next_after(micros(start)) or 0) == expected
