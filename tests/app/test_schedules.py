"""`app.schedules`, and schedules in code."""

import json
from datetime import UTC, datetime, timedelta
from inspect import signature
from zoneinfo import ZoneInfo

import pytest

from duly import BadOption, Duly
from duly.api.schedule_options import ScheduledTaskOptions
from duly.errors import BadSchedule, ScheduleEnded, ScheduleExists, ScheduleNotFound
from duly.store.due_schedules import fire_due
from duly.store.reads import ScheduleFilter
from duly.task_options import define
from tests.servers.processes import wait_until
from tests.store.conformance.stores import opened_tables

MINUTE = timedelta(minutes=1)


@pytest.fixture
def digest(app: Duly):
    """A task that takes an argument."""

    @app.task(name="shop:digest", queue="mail", priority=2)
    def digest(user: int = 0) -> int:
        return user

    return digest


def now() -> datetime:
    return datetime.now(UTC)


def test_a_schedule_is_added_at_run_time(app, digest):
    added = app.schedules.add(
        "digest:42", digest, cron="0 7 * * MON-FRI", args=(42,), tz="Europe/Paris"
    )

    assert (added.name, added.task, added.state) == ("digest:42", "shop:digest", "active")
    assert (added.when, added.tz) == ("At 07:00 on Monday through Friday", "Europe/Paris")
    assert (added.misfire, added.overlap, added.source) == ("latest", "skip", "runtime")
    assert app.schedules.get("digest:42") == added
    assert [schedule.name for schedule in app.schedules.list()] == ["digest:42"]
    upcoming = app.schedules.next("digest:42", 7)
    assert len(upcoming) == 7
    assert upcoming[0] == added.next_at
    assert {(at.hour, at.minute) for at in upcoming} == {(7, 0)}
    assert all(at.tzinfo == ZoneInfo("Europe/Paris") and at.weekday() < 5 for at in upcoming)


def test_the_runs_of_a_schedule_have_its_arguments_and_the_options_of_its_task(app, digest):
    app.schedules.add("once", digest, at=now(), kwargs={"user": 7})

    fire_due(app.store, 10)

    (run,) = app.runs.list()
    record = run.record
    assert (record.queue, record.priority) == ("mail", 2)
    assert json.loads(record.arguments) == [[], {"user": 7}]
    assert [found.id for found in app.runs.list(tag=("schedule", "once"))] == [run.id]
    (fired,) = app.schedules.firings("once")
    assert (fired.outcome, fired.run_id) == ("run", run.id)
    assert app.schedules.get("once").state == "ended"


@pytest.mark.parametrize(
    ("on_duplicate", "hour"), [("replace", 8), ("keep", 7)], ids=["replace", "keep"]
)
def test_a_second_schedule_with_the_same_name_replaces_the_first_or_is_dropped(
    app, digest, on_duplicate, hour
):
    app.schedules.add("digest", digest, cron="0 7 * * *")

    app.schedules.add("digest", digest, cron="0 8 * * *", on_duplicate=on_duplicate)

    assert {at.hour for at in app.schedules.next("digest")} == {hour}


def test_the_error_for_a_second_schedule_with_the_same_name_names_both_actors(app, digest):
    app.schedules.add("digest", digest, cron="0 7 * * *", actor="ada")

    with pytest.raises(
        ScheduleExists, match=r"'digest' cannot be defined at run time by bob.* by ada"
    ):
        app.schedules.add("digest", digest, cron="0 8 * * *", on_duplicate="error", actor="bob")


def test_two_one_time_schedules_with_the_same_name_both_run(app, digest):
    app.schedules.add("remind:1", digest, at=now())
    fire_due(app.store, 10)
    app.schedules.add("remind:1", digest, at=now())
    fire_due(app.store, 10)

    assert len(app.runs.list()) == 2


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "exactly one of cron=, every= and at="),
        ({"cron": "* * * * *", "every": 5}, "exactly one of"),
        ({"cron": "0 0 31 2 *"}, "cron expression"),
        ({"cron": "* * * * *", "tz": "Mars"}, "no time zone"),
        ({"every": 0.1}, "interval"),
        ({"at": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the mistake
        ({"every": 5, "misfire": "maybe"}, "misfire"),
        ({"every": 5, "on_duplicate": "both"}, "on_duplicate"),
        ({"every": 5, "jitter": -1}, "jitter"),
        ({"every": 5, "jitter": 5}, "jitter must be shorter"),
        ({"cron": "* * * * *", "jitter": 61}, "jitter must be shorter"),
        ({"every": 5, "max_catch_up": 2.5}, "max_catch_up"),
        ({"every": 5, "pause_after": 1.5}, "pause_after"),
        ({"cron": 5}, "cron expression"),
        ({"cron": "* * * * *", "tz": None}, "no time zone"),
        ({"cron": ",".join("1" * 1000) + " * * * *"}, "cron expression"),
        ({"at": datetime.max.replace(tzinfo=UTC)}, "between the years"),
        ({"at": datetime(1, 1, 1, tzinfo=UTC)}, "between the years"),
        ({"every": 5, "start": datetime.max.replace(tzinfo=UTC)}, "between the years"),
    ],
)
def test_an_invalid_schedule_is_refused_and_nothing_is_written(app, digest, options, problem):
    with pytest.raises(BadOption, match=problem):
        app.schedules.add("digest", digest, **options)

    assert app.schedules.list() == []


@pytest.mark.parametrize("act", ["pause", "resume", "remove", "run_now", "get", "next"])
def test_the_error_for_an_unknown_schedule_names_it(app, act):
    with pytest.raises(ScheduleNotFound, match="no schedule 'nothing'"):
        getattr(app.schedules, act)("nothing")


def test_a_schedule_can_be_paused_resumed_run_and_removed(app, digest):
    app.schedules.add("digest", digest, every=60)

    app.schedules.pause("digest", reason="too loud")
    assert (app.schedules.get("digest").state, app.schedules.get("digest").reason) == (
        "paused",
        "too loud",
    )
    app.schedules.resume("digest")
    assert app.schedules.get("digest").state == "active"
    run = app.schedules.run_now("digest", actor="ada")
    assert run.state == "queued"
    app.schedules.remove("digest")
    assert app.schedules.list() == []
    assert [s.name for s in app.schedules.list(removed=True)] == ["digest"]
    assert [f.reason for f in app.schedules.firings("digest")] == ["by ada"]


def test_an_ended_schedule_can_be_neither_paused_nor_resumed(app, digest):
    app.schedules.add("once", digest, at=now())
    fire_due(app.store, 10)

    for act in (app.schedules.pause, app.schedules.resume):
        with pytest.raises(ScheduleEnded, match="'once' has ended"):
            act("once")
    app.schedules.remove("once")


@pytest.mark.stores("sqlite-wal")
def test_a_cron_expression_with_six_fields_needs_seconds_field(app, digest):
    with pytest.raises(BadSchedule, match="six fields"):
        app.schedules.add("digest", digest, cron="* * * * * */20")
    with pytest.raises(BadSchedule, match="six fields"):
        app.cron("* * * * * */20", name="other")
    with pytest.raises(BadSchedule, match="seconds_field"):
        app.schedules.add("digest", digest, every=5, seconds_field="first")

    app.schedules.add("digest", digest, cron="* * * * * */20", seconds_field="last")

    assert app.schedules.get("digest").cron == "*/20 * * * * *"
    assert {instant.second for instant in app.schedules.next("digest", 6)} == {0, 20, 40}


def test_a_schedule_with_many_missed_instants_is_paused_in_one_call(app, digest):
    app.schedules.add("digest", digest, cron="* * * * * *", seconds_field="first")
    with opened_tables(app.url) as tables:
        hour = "3600000000" if app.url.startswith("sqlite") else "interval '1 hour'"
        tables.execute(
            f"UPDATE duly_schedules SET next_at = next_at - {hour}, look_at = look_at - {hour}"  # noqa: S608
        )

    app.schedules.pause("digest")

    assert app.schedules.get("digest").state == "paused"
    assert sum(fired.instants for fired in app.schedules.firings("digest")) >= 3600


def test_a_backfill_runs_the_instants_of_a_span_once(app, digest):
    app.schedules.add("digest", digest, cron="0 * * * *")
    start = datetime(2025, 3, 1, tzinfo=UTC)

    runs = app.schedules.backfill("digest", start, start + timedelta(hours=5))
    again = app.schedules.backfill("digest", start, start + timedelta(hours=6))

    assert (len(runs), len(again)) == (5, 1)
    with pytest.raises(BadSchedule, match="shorter periods"):
        app.schedules.backfill("digest", start, start + timedelta(days=365))


# -- schedules in code --


def test_schedules_in_code_are_stored_when_a_worker_starts(app):
    @app.cron("0 2 * * *", tz="Europe/Paris", retries=3, name="nightly")
    def nightly() -> None: ...

    @app.every(name="poll", minutes=5)
    async def poll() -> None: ...

    assert nightly.definition.retry.limit == 3
    with app.worker():
        known = {schedule.name: schedule for schedule in app.schedules.list()}

    assert set(known) == {"nightly", poll.name}
    assert known["nightly"].source == "code"
    assert known["nightly"].is_registered
    assert known[poll.name].when == "Every 5 minutes"


def test_a_pause_and_a_cursor_survive_a_restart(app):
    @app.every(name="poll", hours=1)
    def poll() -> None: ...

    app.schedules.sync()
    app.schedules.pause(poll.name)
    before = app.schedules.get(poll.name)

    app.schedules.sync()

    assert app.schedules.get(poll.name) == before


def test_a_schedule_that_is_gone_from_the_code_is_removed_and_other_modules_are_unchanged(
    app, store_url
):
    app.task(name="other:task")(lambda: None)
    app.every(hours=1, name="theirs")(_named("elsewhere:poll"))
    app.every(hours=1, name="ours")(_named("other:poll"))
    app.schedules.sync()

    with_less = Duly(store_url)
    with_less.task(name="other:task")(lambda: None)
    with_less.schedules.sync()

    assert [schedule.name for schedule in app.schedules.list()] == ["theirs"]
    gone = app.schedules.get("ours")
    assert (gone.state, gone.reason) == ("removed", "gone from the code")
    with_less.close()


def test_schedules_of_another_application_with_the_same_module_name_are_unchanged(app, store_url):
    app.every(hours=1)(_named("tasks:nightly"))
    with app.worker():
        pass

    other = Duly(store_url)
    other.every(hours=1)(_named("tasks:cleanup"))
    other.schedules.sync()

    assert [each.name for each in app.schedules.list()] == ["tasks:cleanup", "tasks:nightly"]
    other.close()


def test_a_schedule_is_removed_while_workers_of_the_previous_version_still_run(app, store_url):
    app.task(_named("tasks:bill"))
    app.every(hours=1)(_named("tasks:nightly"))

    later = Duly(store_url)
    later.task(_named("tasks:bill"))
    with app.worker():
        wait_until(
            lambda: app.store.list_workers() and app.schedules.list(),
            seconds=20,
            what="the worker has stored its tasks and schedules",
        )
        later.schedules.sync()

        assert app.schedules.list() == []
    later.close()


def _named(name: str):
    module, _, qualified = name.partition(":")

    def body() -> None: ...

    body.__module__, body.__qualname__ = module, qualified
    return body


def test_a_name_that_code_and_run_time_both_use_is_an_error(app, digest):
    app.schedules.add("nightly", digest, every=60, actor="ada")

    @app.cron("0 2 * * *", name="nightly")
    def nightly() -> None: ...

    with pytest.raises(ScheduleExists, match=r"in code, .*test_schedules.py:\d+: .* by ada"):
        app.schedules.sync()


def test_a_schedule_needs_a_task_that_takes_no_arguments(app):
    with pytest.raises(TypeError, match="user"):

        @app.every(name="greet", hours=1)
        def greet(user: int) -> None: ...


def test_the_error_for_an_unknown_schedule_option_names_it(app):
    with pytest.raises(BadOption, match="no option 'often'"):
        app.every(hours=1, often=True)(lambda: None)


def test_an_unknown_time_zone_is_shown_and_can_be_replaced(app, digest):
    app.schedules.add("digest", digest, cron="0 2 * * *")
    stored = app.store.list_schedules(ScheduleFilter("digest"))[0]
    unknown = stored._replace(trigger='{"cron": "0 2 * * *", "tz": "Mars/Olympus"}')
    with opened_tables(app.url) as tables:
        tables.execute(f"UPDATE duly_schedules SET trigger = '{unknown.trigger}'")  # noqa: S608

    assert [s.tz for s in app.schedules.list()] == ["Mars/Olympus"]

    app.schedules.add("digest", digest, cron="0 2 * * *")
    assert app.schedules.get("digest").tz == "UTC"


def test_a_schedule_for_a_value_that_is_not_a_task_is_refused(app):
    with pytest.raises(BadSchedule, match="fires a task"):
        app.schedules.add("x", "nosuch", cron="0 7 * * *")


def test_a_scheduled_task_takes_every_option_of_a_task():
    of_tasks = signature(define).parameters.keys() - {"function", "name"}

    assert of_tasks <= ScheduledTaskOptions.__annotations__.keys()
