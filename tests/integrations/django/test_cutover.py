"""The import of the tables and queued messages of django-periodic-tasks into duly."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, connections, transaction
from django.test import override_settings

from duly import BadOption
from duly.integrations.django import scheduled_task
from duly.integrations.django.checks import check_workers
from duly.integrations.django.executions import EXECUTION
from duly.store.reads import ScheduleFilter
from tests.integrations.django import left_behind, other, tasks
from tests.integrations.django.test_exactly_once import bill, calls

SOON = 20.0
BILL = "tests.integrations.django.test_exactly_once.bill"
REMIND = "tests.integrations.django.tasks.remind"


@pytest.fixture(autouse=True)
def _left_behind(scheduler):
    calls.clear()
    left_behind.make_tables()


def take_over() -> str:
    out = StringIO()
    call_command("duly", "import-periodic-tasks", stdout=out)
    return out.getvalue()


def message(execution: str, *args: object) -> other.Delivery:
    """Return a message as django-periodic-tasks had enqueued it on another backend."""
    return bill, list(args), {EXECUTION: execution}


def test_an_old_message_in_a_queue_runs_once(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    execution = left_behind.leave_execution(schedule)

    assert other.deliver(message(execution, 42)) == "billed 42"
    assert other.deliver(message(execution, 42)) is None

    assert calls == [42]
    assert left_behind.status_of(execution) == "completed"
    (run,) = scheduler.runs.list()
    assert (run.state, run.record.queue, run.record.priority) == ("succeeded", "default", 5)


def test_one_of_two_simultaneous_deliveries_runs(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    execution = left_behind.leave_execution(schedule)

    def deliver(_: int) -> object:
        try:
            return other.deliver(message(execution, 42))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(deliver, range(4), timeout=SOON))

    assert sorted(told, key=str) == [None, None, None, "billed 42"]
    assert calls == [42]


def test_a_message_of_an_execution_that_has_run_is_skipped(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL)
    done = left_behind.leave_execution(schedule, status="completed")

    assert other.deliver(message(done, 42)) is None
    assert other.deliver(message(str(uuid4()), 42)) is None

    assert calls == []
    assert scheduler.runs.list() == []


def test_an_old_message_is_refused_if_the_old_tables_are_gone(scheduler):
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE django_periodic_tasks_taskexecution")

    with pytest.raises(BadOption, match="whose tables are gone"):
        other.deliver(message(str(uuid4()), 42))

    assert calls == []


def test_a_failure_is_raised_to_the_backend_and_kept_as_a_dead_letter(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL)
    execution = left_behind.leave_execution(schedule)

    with pytest.raises(ValueError, match="no such customer"):
        other.deliver(message(execution, -1))

    assert other.deliver(message(execution, -1)) is None
    assert [run.state for run in scheduler.dead.list()] == ["failed"]


def test_schedules_of_the_admin_are_imported_with_all_their_options(scheduler):
    left_behind.leave_schedule("reminders", REMIND, cron="* * * * * */20", args=[7], queue="mail")
    left_behind.leave_schedule("Off for now", REMIND, args=[8], enabled=False)

    said = take_over()

    off, on = scheduler.store.list_schedules(ScheduleFilter())
    assert (on.name, on.task, on.state) == ("reminders", f"{REMIND}@other", "active")
    assert (on.queue, on.priority, on.source) == ("mail", 5, "runtime")
    assert on.arguments == off.arguments.replace("8", "7")
    assert scheduler.schedules.get("reminders").tz == "Europe/Paris"
    assert {scheduler.schedules.get(name).overlap for name in (on.name, off.name)} == {"allow"}
    assert {instant.second for instant in scheduler.schedules.next("reminders", 6)} == {0, 20, 40}
    assert (off.name, off.state) == ("Off-for-now", "paused")
    assert "2 schedules" in said
    assert "paused, as it was disabled: Off-for-now" in said
    assert left_behind.schedules() == {
        "reminders": ("duly", False),
        "Off for now": ("duly-disabled", False),
    }


def test_changes_made_after_an_import_survive_the_next_import(scheduler):
    left_behind.leave_schedule("off", REMIND, args=[8], enabled=False)
    left_behind.leave_schedule("on", REMIND, args=[8])
    take_over()
    scheduler.schedules.resume("off")
    scheduler.schedules.remove("on")

    said = take_over()

    assert [(each.name, each.state) for each in scheduler.schedules.list()] == [("off", "active")]
    assert "0 schedules" in said


def test_a_disabled_code_schedule_is_imported_as_paused(scheduler):
    scheduled_task(cron="0 2 * * *", name="disabled", args=[1])(bill)
    scheduled_task(cron="0 2 * * *", name="enabled", args=[1])(bill)
    for name in ("disabled", "enabled", "gone"):
        left_behind.leave_schedule(name, BILL, source="code", enabled=name == "enabled")

    said = take_over()

    found = {each.name: (each.source, each.state) for each in scheduler.schedules.list()}
    assert found == {"disabled": ("code", "paused"), "enabled": ("code", "active")}
    assert "'gone' is no longer in the code" in said
    scheduler.schedules.resume("disabled")
    take_over()
    assert scheduler.schedules.get("disabled").state == "active"


@pytest.mark.parametrize("source", ["code", "database"])
def test_an_instant_that_was_missed_before_the_import_is_fired_once(scheduler, source):
    if source == "code":
        scheduled_task(cron="0 2 * * *", timezone="Europe/Paris", name="nightly", args=[7])(bill)
    missed = datetime(2026, 3, 2, 1, tzinfo=UTC)  # 02:00 in Paris.
    left_behind.leave_schedule("nightly", BILL, args=[7], source=source, next_run_at=missed)
    left_behind.leave_schedule(
        "later", BILL, args=[7], next_run_at=datetime.now(UTC) + timedelta(hours=1)
    )

    for _ in range(2):
        take_over()

    (run,) = scheduler.runs.list()
    (firing,) = scheduler.schedules.firings("nightly")
    assert (firing.instant, firing.run_id) == (missed, run.id)


def test_an_instant_that_duly_has_fired_before_the_import_is_not_fired_again(scheduler):
    scheduled_task(cron="0 2 * * *", timezone="Europe/Paris", name="nightly", args=[7])(bill)
    missed = datetime(2026, 3, 2, 1, tzinfo=UTC)  # 02:00 in Paris.
    left_behind.leave_schedule("nightly", BILL, args=[7], source="code", next_run_at=missed)
    scheduler.schedules.sync()
    scheduler.schedules.backfill("nightly", missed, missed + timedelta(seconds=1))

    take_over()

    assert len(scheduler.runs.list()) == 1


def test_only_executions_that_would_still_be_dispatched_are_imported(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    disabled = left_behind.leave_schedule("off", BILL, args=[42], enabled=False)
    lost = left_behind.leave_execution(schedule, dispatched=0)
    worn = left_behind.leave_execution(schedule, dispatched=3)
    off = left_behind.leave_execution(disabled)
    left_behind.leave_execution(schedule, status="completed")

    said = [take_over() for _ in range(2)]

    (run,) = scheduler.runs.list()
    assert (run.record.task, run.state) == (f"{BILL}@other", "queued")
    assert [left_behind.status_of(each) for each in (lost, worn, off)] == [
        "completed",
        "pending",
        "pending",
    ]
    assert "1 executions that had not run" in said[0]
    assert "0 executions that had not run" in said[1]
    assert "2 executions stay pending" in said[0]


def test_an_old_message_that_arrives_after_the_import_begins_the_imported_run(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    execution = left_behind.leave_execution(schedule)
    take_over()
    (run,) = scheduler.runs.list()

    assert other.deliver(message(execution, 42)) == "billed 42"

    assert other.deliver((bill, [], {EXECUTION: f"{run.id}:0"})) is None, (
        "the message of duly itself is skipped"
    )
    assert calls == [42]
    assert run.refresh().state == "succeeded"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"path": "tests.nowhere.task"}, "there is no task tests.nowhere.task"),
        ({"cron": "every day"}, "cron expression"),
        ({"backend": "nosuch"}, "nosuch"),
        ({"args": ["4111-2222", 1]}, "arguments do not fit"),
        ({"backend": "strict", "queue": "unknown"}, "unknown"),
    ],
)
def test_a_row_that_cannot_be_imported_stays_and_is_retried(scheduler, row, reason):
    left_behind.leave_schedule("bad", **{"path": BILL, "args": [1], **row})
    left_behind.leave_schedule("good", BILL, args=[1])
    out = StringIO()

    with pytest.raises(CommandError, match="could not be imported"):
        call_command("duly", "import-periodic-tasks", stdout=out)

    assert reason in out.getvalue()
    assert "4111" not in out.getvalue()
    assert [each.name for each in scheduler.schedules.list()] == ["good"]
    assert left_behind.schedules()["bad"] == ("database", True)


def test_an_import_does_not_replace_a_code_schedule_of_the_same_name(scheduler):
    scheduled_task(cron="0 2 * * *", name="nightly", args=[1])(bill)
    left_behind.leave_schedule("nightly", REMIND, args=[2])

    with pytest.raises(CommandError):
        take_over()

    (schedule,) = scheduler.schedules.list()
    assert (schedule.source, schedule.task) == ("code", f"{BILL}@other")


def test_the_second_of_two_schedules_with_the_same_new_name_stays(scheduler):
    left_behind.leave_schedule("by night", REMIND, args=[1])
    left_behind.leave_schedule("by-night", BILL, args=[2])

    with pytest.raises(CommandError):
        take_over()

    (schedule,) = scheduler.schedules.list()
    assert (schedule.name, schedule.task) == ("by-night", f"{REMIND}@other")


def test_imports_at_the_same_time_import_each_row_once(scheduler):
    count = 20
    for number in range(count):
        schedule = left_behind.leave_schedule(f"s{number}", BILL, args=[number])
        left_behind.leave_execution(schedule)
    starts = threading.Barrier(3)

    def run(_: int) -> None:
        starts.wait(SOON)
        try:
            take_over()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(run, range(3), timeout=3 * SOON))

    assert len(scheduler.schedules.list()) == count
    assert len(scheduler.runs.list(limit=200)) == count


def test_an_aborted_import_has_imported_nothing(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    execution = left_behind.leave_execution(schedule)

    with transaction.atomic():
        take_over()
        transaction.set_rollback(True)

    assert scheduler.schedules.list() == scheduler.runs.list() == []
    assert left_behind.status_of(execution) == "pending"
    assert left_behind.schedules() == {"yearly": ("database", True)}
    take_over()
    assert len(scheduler.runs.list()) == len(scheduler.schedules.list()) == 1


@pytest.mark.stores("postgres")
def test_an_execution_that_an_old_worker_is_running_is_not_imported(scheduler):
    """The old worker locks the row for as long as its task runs."""
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    execution = left_behind.leave_execution(schedule)
    locked, may_end = threading.Event(), threading.Event()

    def run() -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            row = "SELECT 1 FROM django_periodic_tasks_taskexecution WHERE id = %s FOR UPDATE"
            cursor.execute(row, [execution])
            locked.set()
            assert may_end.wait(SOON)
            done = "UPDATE django_periodic_tasks_taskexecution SET status = 'completed'"
            cursor.execute(done)
        connection.close()

    with ThreadPoolExecutor(2) as pool:
        old = pool.submit(run)
        assert locked.wait(SOON)
        for _ in range(2):
            assert "1 executions are locked" in take_over()
        assert scheduler.runs.list() == []
        new = pool.submit(lambda: (other.deliver(message(execution, 42)), connections.close_all()))
        may_end.set()
        old.result(SOON)
        assert new.result(SOON)[0] is None
    assert calls == []
    assert "locked" not in take_over()


def test_a_project_without_the_old_tables_has_nothing_to_import(scheduler):
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE django_periodic_tasks_taskexecution")
        cursor.execute("DROP TABLE django_periodic_tasks_scheduledtask")

    assert "there are no tables of django-periodic-tasks" in take_over()


def test_tables_of_a_version_without_dispatch_counts_are_imported(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    delivered, _ = left_behind.leave_execution(schedule), left_behind.leave_execution(schedule)
    with connection.cursor() as cursor:
        for column in ("dispatch_count", "dispatched_at"):
            cursor.execute(f"ALTER TABLE django_periodic_tasks_taskexecution DROP COLUMN {column}")

    assert other.deliver(message(delivered, 42)) == "billed 42"
    take_over()

    assert len(scheduler.runs.list()) == 2


def test_a_deployment_check_warns_about_schedules_that_were_not_imported(scheduler, backend):
    left_behind.leave_schedule("yearly", BILL, args=[42])
    told = lambda: {each.id for each in check_workers(databases=["default"])}  # noqa: E731

    assert "duly.W005" in told()
    take_over()
    assert "duly.W005" not in told()


@pytest.mark.stores("sqlite-wal")
def test_the_import_command_accepts_only_a_known_database(scheduler):
    with pytest.raises(CommandError, match="one of default"):
        call_command("duly", "--", "import-periodic-tasks", "--database", "nosuch")
    with pytest.raises(CommandError, match="takes only --database"):
        call_command("duly", "import-periodic-tasks", "now")


def test_imported_executions_of_duly_itself_run_in_its_worker(scheduler, backend):
    path = "tests.integrations.django.tasks.add"
    schedule = left_behind.leave_schedule("add", path, args=[41], backend="default")
    left_behind.leave_execution(schedule)
    assert tasks.add.backend == "default"

    take_over()

    (run,) = backend.app.runs.list()
    with backend.app.worker():
        assert run.result(timeout=SOON) == 42
    assert [each.task for each in backend.app.schedules.list()] == [path]


@override_settings(PERIODIC_TASKS_MAX_DISPATCH_ATTEMPTS=5)
def test_a_setting_limits_how_often_an_execution_is_dispatched(scheduler):
    schedule = left_behind.leave_schedule("yearly", BILL, args=[42])
    left_behind.leave_execution(schedule, dispatched=4)

    take_over()

    assert len(scheduler.runs.list()) == 1
