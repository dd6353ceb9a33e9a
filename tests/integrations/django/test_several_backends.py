"""Schedules of tasks that one or several other backends carry, and what those are told."""

import pytest
from django.db import connections

from duly.integrations.django import (
    ScheduleRegistry,
    duly_options,
    exactly_once,
    periodic,
    scheduled_task,
)
from duly.worker.services.relay import Relay
from tests.integrations.django import other, tasks
from tests.integrations.django.api import InvalidTask

SOON = 20.0
both_kinds = pytest.mark.parametrize("chosen", [tasks.remind, tasks.remind_plainly])


def fire(app, *names: str) -> None:
    """Have schedules fire once each, and hand over what comes of it."""
    app.schedules.sync()
    for name in names:
        app.schedules.run_now(name)
    periodic.PeriodicTaskScheduler().tick()


@both_kinds
def test_a_backend_is_told_the_queue_and_the_priority_of_the_schedule(scheduler, chosen):
    scheduled_task(cron="0 0 1 1 *", name="own", args=[1])(chosen)
    scheduled_task(cron="0 0 1 1 *", name="bulk", args=[2], queue_name="bulk", priority=5)(chosen)

    fire(scheduler, "own", "bulk")

    told = {(task.queue_name, task.priority) for task, _, _ in other.waiting}
    assert told == {("default", 0), ("bulk", 5)}


@both_kinds
def test_one_task_may_be_scheduled_on_several_backends(scheduler, chosen):
    scheduled_task(cron="0 0 1 1 *", name="own", args=[1])(chosen)
    scheduled_task(cron="0 0 1 1 *", name="elsewhere", args=[2], backend="strict")(chosen)

    fire(scheduler, "own", "elsewhere")

    done = {task.backend: other.deliver((task, *call)) for task, *call in other.waiting}
    assert done == {"other": "reminded 1", "strict": "reminded 2"}
    assert {run.state for run in scheduler.runs.list()} == {"succeeded"}


def test_a_schedule_on_another_backend_leaves_runs_on_dulys_own_alone(backend, scheduler):
    scheduled_task(cron="0 0 1 1 *", name="elsewhere", args=[2], backend="other")(tasks.add)
    result = tasks.add.enqueue(41)

    fire(scheduler, "elsewhere")

    assert [args for _, args, _ in other.waiting] == [[2]]
    backend.app.worker().drain(timeout=SOON)
    result.refresh()
    assert result.return_value == 42


@pytest.mark.stores("sqlite-wal")
def test_what_a_backend_refuses_is_told_where_the_schedule_is_defined(scheduler):
    for registry in (None, ScheduleRegistry()):
        with pytest.raises(InvalidTask, match="bulk"):
            scheduled_task(
                cron="0 2 * * *", queue_name="bulk", backend="strict", registry=registry
            )(tasks.remind)
        for priority in (-101, 101):
            with pytest.raises(InvalidTask, match="priority"):
                scheduled_task(cron="0 2 * * *", priority=priority, registry=registry)(tasks.add)


def test_a_backend_that_cannot_be_reached_holds_up_no_other(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="broken", args=[1], backend="broken")(tasks.remind)
    scheduled_task(cron="0 0 1 1 *", name="own", args=[2])(tasks.remind)
    scheduler.schedules.sync()
    for name in ("broken", "own", "broken", "own"):
        scheduler.schedules.run_now(name)
    relay = Relay(scheduler.store, scheduler.registry, scheduler.bus)

    for _ in range(3):
        relay.tick()

    assert [task.backend for task, _, _ in other.waiting] == ["other", "other"]
    with connections["default"].cursor() as cursor:
        cursor.execute("SELECT stale_at FROM duly_handed ORDER BY stale_at")
        soon, also_soon, later, last = (row[0] for row in cursor.fetchall())
    # Only those that were not sent are sent again at once.
    assert soon == also_soon < later <= last


def test_tasks_of_the_backport_count_as_tasks_beside_djangos_own(scheduler):
    django_tasks = pytest.importorskip("django_tasks", reason="the backport is not installed")
    made = django_tasks.base.Task(func=tasks.remind.func, backend="other")

    assert scheduled_task(cron="0 0 1 1 *", name="backported", args=[3])(made) is made
    for decorate in (exactly_once, duly_options()):
        with pytest.raises(ValueError, match="below @task"):
            decorate(made)
    fire(scheduler, "backported")

    (delivery,) = other.waiting
    assert other.deliver(delivery) == "reminded 3"
