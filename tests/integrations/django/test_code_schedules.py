"""`@scheduled_task`: one run of a Django task per due instant."""

from contextlib import closing

import pytest
from django.conf import settings
from django.test import override_settings

from duly import BadOption
from duly.errors import BadSchedule
from duly.integrations.django import scheduled_task
from duly.store.due_schedules import fire_due
from duly.testing import Harness
from tests.integrations.django import tasks
from tests.integrations.django.api import task_backends
from tests.servers.fresh import fresh_store
from tests.servers.processes import wait_until

SOON = 20.0


@pytest.fixture
def timed(project, store_kind, tmp_path, request):
    """Yield a backend named "timed", whose clock the test controls."""
    options = {
        "BACKEND": "duly.integrations.django.DulyBackend",
        "OPTIONS": {"url": "sqlite:///never-opened.db"},
    }
    with override_settings(TASKS=settings.TASKS | {"timed": options}):
        app = task_backends["timed"].app
        with closing(Harness(app, fresh_store(store_kind, tmp_path, request))) as harness:
            yield harness
        app.schedules._defined.clear()


def test_a_schedule_fires_its_task_with_its_arguments(backend):
    fired = scheduled_task(cron="* * * * * *", args=[41], name="every-second", queue_name="mail")
    assert fired(tasks.add) is tasks.add
    with backend.app.worker():
        assert first_run(backend).result(timeout=SOON) == 42
    record = first_run(backend).record
    assert (record.task, record.queue) == ("tests.integrations.django.tasks.add", "mail")
    assert [firing.run_id for firing in backend.app.schedules.firings("every-second")]


@pytest.mark.stores("sqlite-wal")
def test_a_schedule_cannot_name_a_queue_that_no_command_can_name(backend):
    with pytest.raises(BadOption, match="--drain"):
        scheduled_task(cron="0 2 * * *", args=[41], queue_name="--drain")(tasks.add)


@pytest.mark.parametrize(
    ("rules", "outcome"),
    [({}, "run"), ({"misfire": "all"}, "run"), ({"overlap": "skip"}, "skipped")],
)
def test_an_instant_is_enqueued_while_the_last_run_is_live_unless_an_option_forbids_it(
    timed, rules, outcome
):
    """django-periodic-tasks enqueues every instant."""
    decorate = scheduled_task(cron="* * * * *", name="each-minute", backend="timed", **rules)
    decorate(tasks.do_meanwhile)
    timed.drain()

    def outlast_the_interval():
        timed.advance(60)
        fire_due(timed.app.store)

    tasks.meanwhile[:] = [outlast_the_interval]
    timed.advance(60)
    timed.drain()

    second, first = timed.app.schedules.firings("each-minute")
    assert (first.outcome, second.outcome) == ("run", outcome)


@pytest.mark.stores("sqlite-wal")
def test_the_last_of_six_fields_names_seconds_as_in_croniter(backend):
    scheduled_task(cron="* * * * * */20", args=[41], name="often")(tasks.add)
    backend.app.schedules.sync()

    assert {instant.second for instant in backend.app.schedules.next("often", 6)} == {0, 20, 40}


def first_run(backend):
    wait_until(lambda: bool(backend.app.runs.list()), seconds=SOON, what="it fires")
    return backend.app.runs.list()[-1]


@pytest.mark.stores("sqlite-wal")
def test_a_schedule_is_named_after_its_task_by_default(backend):
    scheduled_task(cron="0 2 * * *", timezone="Europe/Paris")(tasks.ask_the_database)
    backend.app.schedules.sync()
    (schedule,) = backend.app.schedules.list()
    assert schedule.name == "tests.integrations.django.tasks.ask_the_database"
    assert schedule.tz == "Europe/Paris"


@pytest.mark.stores("sqlite-wal")
def test_two_schedules_of_one_task_need_two_names(backend):
    for _ in range(2):  # A module may be imported twice.
        scheduled_task(cron="0 2 * * *", args=[1])(tasks.add)
    with pytest.raises(BadOption, match="another name"):
        scheduled_task(cron="0 3 * * *", args=[1])(tasks.add)
    scheduled_task(cron="0 3 * * *", args=[1], name="later")(tasks.add)

    backend.app.schedules.sync()

    names = {schedule.name for schedule in backend.app.schedules.list()}
    assert names == {"tests.integrations.django.tasks.add", "later"}


@pytest.mark.stores("sqlite-wal")
def test_an_invalid_schedule_is_refused_at_import(backend):
    with pytest.raises(BadOption, match="above @task"):
        scheduled_task(cron="0 2 * * *")(lambda: None)
    with pytest.raises(BadSchedule):
        scheduled_task(cron="every day")(tasks.add)
    with pytest.raises(TypeError):
        scheduled_task(cron="0 2 * * *", args=[object()])(tasks.add)


def test_workers_and_schedulers_keep_each_others_schedules(backend, scheduler):
    scheduled_task(cron="0 2 * * *", name="ours", args=[41])(tasks.add)
    scheduled_task(cron="0 2 * * *", name="theirs", args=[7])(tasks.remind)

    for app in (backend.app, scheduler, backend.app):
        app.schedules.sync()

    assert {schedule.name for schedule in backend.app.schedules.list()} == {"ours", "theirs"}
