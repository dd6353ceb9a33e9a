"""The functions and classes of django-periodic-tasks, under the names that its users know."""

import threading
from datetime import datetime
from typing import Any

from django.conf import settings
from django.utils import timezone
from django.utils.module_loading import import_string

from duly.core.amounts import check_seconds, instant
from duly.core.cron import Cron
from duly.core.instants import moment
from duly.errors import BadOption, BadSchedule, StoreError, TaskNotRegistered
from duly.extend import report_error
from duly.integrations.django.app import scheduler_app
from duly.integrations.django.code_schedules import (
    ScheduleEntry,
    ScheduleRegistry,
    schedule_registry,
    scheduled_task,
    sync_code_schedules,
)
from duly.integrations.django.databases import is_testing
from duly.integrations.django.executions import undecorated
from duly.integrations.django.inline import inline_worker
from duly.integrations.django.project import project_tasks, register_project_tasks
from duly.integrations.django.tasks_api import Task
from duly.store.due_schedules import fire_due
from duly.store.per_process import PerProcess
from duly.worker.services.relay import Relay

__all__ = [
    "PeriodicTaskScheduler",
    "ScheduleEntry",
    "ScheduleRegistry",
    "compute_next_run_at",
    "get_all_task_choices",
    "get_scheduler_class",
    "is_exactly_once",
    "resolve_task",
    "schedule_registry",
    "scheduled_task",
    "sync_code_schedules",
    "validate_cron_expression",
]


def compute_next_run_at(
    cron_expression: str, timezone_name: str = "UTC", base_time: datetime | None = None
) -> datetime | None:
    """Return the next time of a cron expression, strictly after now or after `base_time`."""
    after = instant("base_time", timezone.now() if base_time is None else base_time)
    found = Cron(cron_expression, timezone_name, seconds_field="last").next_after(after)
    return None if found is None else moment(found)


def validate_cron_expression(cron_expression: str) -> bool:
    """Return whether a cron expression is valid."""
    try:
        Cron(cron_expression, "UTC", seconds_field="last")
    except BadSchedule:
        return False
    return True


def is_exactly_once(function: Any) -> bool:  # noqa: ANN401 - of a user's task
    """Return whether a function is decorated with `@exactly_once`."""
    return undecorated(function) is not None


def resolve_task(task_path: str) -> Task:
    """Return a task of the project by its path, without importing modules for it."""
    register_project_tasks()
    known = {task.module_path: task for task in project_tasks()}
    if task_path not in known:
        raise TaskNotRegistered(task_path, tuple(sorted(known)))
    return known[task_path]


def get_all_task_choices() -> list[tuple[str, str]]:
    """Return the paths of all tasks of the project, as choices of a form."""
    register_project_tasks()
    return [(task.module_path, task.module_path) for task in project_tasks()]


class PeriodicTaskScheduler(threading.Thread):
    """A thread that fires schedules in a process with other work. `run_scheduler` does not need it.

    It fires schedules exactly when they are due. `interval` is only how soon it tries again if the
    database cannot be reached at its start.
    """

    def __init__(self, interval: float = 15) -> None:
        check_seconds("interval", interval)
        if interval <= 0:
            raise BadOption(f"interval must be above 0 seconds, not {interval!r}")
        super().__init__(name="duly-scheduler", daemon=True)
        self.interval = interval
        self._is_over = threading.Event()

    def run(self) -> None:
        """Fire schedules until the thread is stopped."""
        app = scheduler_app().with_own_connections()
        while app.is_inline() and not self._is_over.is_set():
            register_project_tasks()
            self.tick()
            self._is_over.wait(self.interval)
        while not self._is_over.is_set():
            try:
                register_project_tasks()
                with app.worker():
                    self._is_over.wait()
            except StoreError as error:
                report_error(app, "scheduler", error)
                self._is_over.wait(self.interval)

    def tick(self) -> None:
        """Fire schedules that are due now, and send their runs to their backends."""
        app = scheduler_app().with_own_connections()
        app.schedules.sync()
        while (fired := fire_due(app.store)).has_more:
            if not fired.looked_at:
                break  # Other schedulers are firing the rest.
        if app.is_inline():
            with inline_worker(app) as worker:
                worker.drain()
        else:
            app.worker().drain(timeout=self.interval)
        # After draining: a run that waited for its time can be sent now that it is ready.
        Relay(app.store, app.registry, app.bus).tick()

    def stop(self) -> None:
        """Stop the thread."""
        self._is_over.set()

    def close(self) -> None:
        """Stop the thread and wait until it has ended."""
        self.stop()
        self.join()


def get_scheduler_class() -> Any:  # noqa: ANN401 - of the user's own
    """Return the class that `PERIODIC_TASKS_SCHEDULER_CLASS` names."""
    path = getattr(settings, "PERIODIC_TASKS_SCHEDULER_CLASS", None)
    return PeriodicTaskScheduler if path is None else import_string(path)


def _begin() -> Any:  # noqa: ANN401 - as above
    scheduler = get_scheduler_class()(getattr(settings, "PERIODIC_TASKS_SCHEDULER_INTERVAL", 15))
    scheduler.start()
    return scheduler


PROCESS_SCHEDULER = PerProcess(_begin)
"""The scheduler of this process, if the settings request one. A forked server has one per child."""


def autostart(**_request: Any) -> None:  # noqa: ANN401 - Django's
    """Start the scheduler at the first request, so that commands such as `migrate` fire nothing.

    Tests make requests too, and fired runs would disturb them. They call `tick` where they need it.
    """
    if not is_testing():
        PROCESS_SCHEDULER.get()
