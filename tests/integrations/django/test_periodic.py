"""Names and settings of django-periodic-tasks, and their meaning in duly."""

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.apps import apps
from django.core.signals import request_started
from django.db import connection, transaction
from django.test import override_settings

from duly import BadOption
from duly.errors import TaskNotRegistered
from duly.extend import ResendPolicy
from duly.integrations.django import (
    ScheduleEntry,
    ScheduleRegistry,
    periodic,
    schedule_registry,
    scheduled_task,
)
from duly.integrations.django.executions import CARRIER, retention
from duly.store.ops.schedules import Fired
from duly.store.ops.upkeep import Prune
from duly.worker.services.relay import Relay
from tests.integrations.django import other, tasks
from tests.servers.processes import wait_until

SOON = 20.0
one_database = pytest.mark.stores("sqlite-wal")


@one_database
def test_the_schedules_of_the_code_can_be_read_from_the_registry(backend):
    scheduled_task(cron="0 2 * * *", name="nightly", args=[41])(tasks.add)

    assert schedule_registry.get_entries() == {
        "nightly": ScheduleEntry(tasks.add, "0 2 * * *", "nightly", args=[41])
    }
    with pytest.raises(ValueError, match="'nightly' is already registered"):
        scheduled_task(cron="0 3 * * *", name="nightly", args=[41])(tasks.add)


def test_the_schedules_of_a_custom_registry_fire_once_it_is_synced(backend):
    registry = ScheduleRegistry()
    scheduled_task(cron="0 2 * * *", name="apart", args=[41], registry=registry)(tasks.add)
    periodic.sync_code_schedules()
    assert "apart" not in {schedule.name for schedule in backend.app.schedules.list()}

    periodic.sync_code_schedules(registry)

    assert "apart" in {schedule.name for schedule in backend.app.schedules.list()}


def test_a_paused_schedule_stays_paused_when_the_next_deployment_syncs(backend):
    scheduled_task(cron="0 2 * * *", name="nightly", args=[41])(tasks.add)
    periodic.sync_code_schedules()
    backend.app.schedules.pause("nightly", actor="ada")

    periodic.sync_code_schedules()

    assert backend.app.schedules.get("nightly").state == "paused"


def test_cron_expressions_are_validated_and_their_next_instant_is_computed():
    base = datetime(2026, 3, 29, 0, 30, tzinfo=UTC)
    # The clock moves from two to three that night.
    found = periodic.compute_next_run_at("30 2 * * *", "Europe/Paris", base)
    assert found == datetime(2026, 3, 29, 1, 0, tzinfo=UTC)
    assert periodic.compute_next_run_at("* * * * *") > datetime.now(UTC)
    # The last of six fields names seconds, as in croniter.
    often = periodic.compute_next_run_at("* * * * * */20", "UTC", base)
    assert often == base + timedelta(seconds=20)
    assert periodic.validate_cron_expression("0 2 * * *")
    assert not periodic.validate_cron_expression("every day")
    with pytest.raises(BadOption):
        periodic.compute_next_run_at("* * * * *", base_time=datetime(2026, 1, 1))  # noqa: DTZ001


@one_database
def test_tasks_are_found_by_their_paths_without_an_import(backend):
    path = tasks.add.module_path
    assert periodic.resolve_task(path) is tasks.add
    assert (path, path) in periodic.get_all_task_choices()
    sys.modules.pop("this", None)
    with pytest.raises(TaskNotRegistered):
        periodic.resolve_task("this.s")
    assert "this" not in sys.modules
    assert periodic.is_exactly_once(tasks.remind.func)
    assert not periodic.is_exactly_once(tasks.add.func)


@pytest.mark.parametrize("interval", [0, -5, "15"])
def test_a_scheduler_needs_an_interval_above_zero(interval):
    """Without a pause it would query an unavailable database in a busy loop."""
    with pytest.raises(ValueError, match="interval"):
        periodic.PeriodicTaskScheduler(interval)


def test_a_tick_fires_due_schedules_and_hands_their_runs_over(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[7])(tasks.remind)
    scheduled_task(cron="0 0 1 1 *", name="yearly-plain", args=[8])(tasks.remind_plainly)
    scheduler.schedules.sync()
    for name in ("yearly", "yearly-plain"):
        scheduler.schedules.run_now(name)

    periodic.PeriodicTaskScheduler().tick()

    assert {task.module_path.rpartition(".")[2] for task, _, _ in other.waiting} == {
        "remind",
        "remind_plainly",
    }


@one_database
@pytest.mark.usefixtures("scheduler")
def test_a_tick_does_not_spin_on_schedules_that_another_process_is_firing(monkeypatch):
    looks = []

    def fire_due(store):
        looks.append(store)
        assert len(looks) < 10, "the tick spins"
        return Fired(0, 0, has_more=True)

    monkeypatch.setattr(periodic, "fire_due", fire_due)

    periodic.PeriodicTaskScheduler().tick()

    assert len(looks) == 1


def test_a_scheduler_thread_fires_until_it_is_stopped(scheduler):
    scheduled_task(cron="* * * * * *", name="every-second", args=[7])(tasks.remind)
    thread = periodic.PeriodicTaskScheduler()
    thread.start()
    try:
        wait_until(lambda: bool(other.waiting), seconds=SOON, what="the run is handed over")
    finally:
        thread.close()
    assert not thread.is_alive()


def test_a_web_process_with_a_scheduler_writes_in_the_transactions_of_its_requests(scheduler):
    scheduled_task(cron="* * * * * *", name="every-second", args=[7])(tasks.remind)
    thread = periodic.PeriodicTaskScheduler()
    thread.start()
    try:
        wait_until(lambda: bool(other.waiting), seconds=SOON, what="the run is handed over")
        with transaction.atomic():
            # As Django's admin does, which opens a transaction around each form.
            scheduler.schedules.pause("every-second")
            transaction.set_rollback(True)
        assert scheduler.schedules.get("every-second").state == "active"
    finally:
        thread.close()


class Counting:
    """Stands for a custom scheduler class."""

    begun = 0

    def __init__(self, interval: float) -> None:
        self.interval = interval

    def start(self) -> None:
        Counting.begun += 1

    def close(self) -> None:
        pass


def test_only_a_process_that_serves_requests_starts_the_scheduler():
    Counting.begun = 0
    settings = {
        "PERIODIC_TASKS_AUTOSTART": True,
        "PERIODIC_TASKS_SCHEDULER_CLASS": f"{__name__}.Counting",
    }
    try:
        with override_settings(**settings):
            # A command such as `migrate` does no more than this.
            apps.get_app_config("duly").ready()
            assert Counting.begun == 0
            for _ in range(3):
                request_started.send(sender=None)
            assert Counting.begun == 1
    finally:
        request_started.disconnect(periodic.autostart)
        periodic.PROCESS_SCHEDULER.close()


def test_an_execution_that_does_not_begin_is_handed_over_up_to_the_configured_limit():
    assert CARRIER.resend_policy == ResendPolicy(60, 3)
    with override_settings(
        PERIODIC_TASKS_MAX_DISPATCH_ATTEMPTS=5, PERIODIC_TASKS_REDISPATCH_AFTER=300
    ):
        assert CARRIER.resend_policy == ResendPolicy(300, 5)
    with override_settings(PERIODIC_TASKS_MAX_DISPATCH_ATTEMPTS=None):
        assert CARRIER.resend_policy.max_sends is None


def let_pass(seconds: int) -> None:
    """Age the handed-over executions by this many seconds."""
    length = f"interval '{seconds} s'" if connection.vendor == "postgresql" else seconds * 1_000_000
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE duly_handed SET stale_at = stale_at - {length}")  # noqa: S608


def test_three_schedulers_hand_an_execution_over_thrice_while_no_worker_runs(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[7])(tasks.remind)
    scheduler.schedules.sync()
    scheduler.schedules.run_now("yearly")
    relays = [Relay(scheduler.store, scheduler.registry, scheduler.bus) for _ in range(3)]

    for _ in range(120):  # Ten minutes.
        for relay in relays:
            relay.tick()
        let_pass(5)

    assert len(other.waiting) == 3
    (run,) = scheduler.runs.list()
    assert run.state == "queued"
    # The last message has an hour. Then an operator is needed.
    let_pass(3600)
    relays[0].tick()
    (dead,) = scheduler.dead.list()
    assert (dead.state, dead.cause) == ("failed", "undelivered")
    assert other.deliver(other.waiting[0]) is None
    scheduler.dead.retry(dead.id, actor="ada")
    periodic.PeriodicTaskScheduler().tick()
    assert other.deliver(other.waiting[3]) == "reminded 7"


def test_ended_executions_are_kept_for_a_day_or_the_configured_time():
    assert retention() == 24 * 3600
    with override_settings(DULY_EXECUTION_RETENTION=timedelta(days=2)):
        assert retention() == 48 * 3600
    with override_settings(DULY_EXECUTION_RETENTION=None):
        assert retention() is None


def test_an_execution_that_succeeded_is_pruned_after_a_day_and_a_dead_letter_is_not(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="plain", args=[8])(tasks.remind_plainly)
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[7])(tasks.remind)
    scheduled_task(cron="0 0 1 1 *", name="wrong", args=["/no/such/folder"])(tasks.count)
    scheduler.schedules.sync()
    for name in ("plain", "yearly", "wrong"):
        scheduler.schedules.run_now(name)
    with scheduler.worker():
        wait_until(lambda: len(other.waiting) == 3, seconds=SOON, what="all are handed over")
        for delivery in other.waiting:
            with suppress(FileNotFoundError):
                other.deliver(delivery)
        wait_until(
            lambda: all(run.is_final for run in scheduler.runs.list()), seconds=SOON, what="all end"
        )
        day = "interval '25 h'" if connection.vendor == "postgresql" else 25 * 3600 * 1_000_000
        with connection.cursor() as cursor:
            ended = "UPDATE duly_history SET kept_until = NULL, finished_at = finished_at - "
            cursor.execute(f"{ended}{day}")
        for _ in range(3):
            scheduler.store.do(Prune(7 * 24 * 3600 * 1_000_000, 100))

    left = {run.record.task.rpartition(".")[2]: run.state for run in scheduler.runs.list()}
    assert left == {"remind_plainly@other": "succeeded", "count@other": "failed"}
