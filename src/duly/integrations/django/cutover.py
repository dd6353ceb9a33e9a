"""Imports the schedules, pauses and executions in the tables of django-periodic-tasks.

A row is marked as taken in the transaction that writes its schedule or run. Each row is therefore
imported once, even if imports run twice, run in several processes at once, or are killed.
Schedulers and workers of django-periodic-tasks that still run ignore such rows.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django.apps.registry import Apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, models, transaction
from django.utils import timezone

from duly import Duly
from duly import Task as EngineTask
from duly.core.record import ScheduleRecord
from duly.errors import BadOption, DulyError, KeyConflict, PayloadError, StoreError
from duly.integrations.django.app import DjangoDuly, scheduler_app
from duly.integrations.django.code_schedules import (
    register_task,
    schedule_registry,
    sync_code_schedules,
)
from duly.integrations.django.executions import MOST_DISPATCHES
from duly.integrations.django.project import databases, register_project_tasks
from duly.integrations.django.tasks_api import TASK_CLASSES, InvalidTask, Task
from duly.observe.logs import log_notice
from duly.store.reads import ScheduleFilter

ACTOR = "import-periodic-tasks"
SCHEDULES, EXECUTIONS = (
    "django_periodic_tasks_scheduledtask",
    "django_periodic_tasks_taskexecution",
)
_CODE, _DATABASE = "code", "database"
_TAKEN, _TAKEN_DISABLED = "duly", "duly-disabled"
_PENDING, _COMPLETED = "pending", "completed"
_NOT_IN_NAMES = re.compile(r"[\s,]+")
_SECOND = timedelta(seconds=1)
_APPS = Apps()
"""Separate from the project's models, where django-periodic-tasks may still be installed."""


class ScheduledTask(models.Model):
    """A schedule, with the columns that the import needs."""

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(max_length=200)
    task_path = models.CharField(max_length=200)
    cron_expression = models.CharField(max_length=200)
    timezone = models.CharField(max_length=63)
    args = models.JSONField()
    kwargs = models.JSONField()
    source = models.CharField(max_length=20)
    enabled = models.BooleanField()
    next_run_at = models.DateTimeField(null=True)
    queue_name = models.CharField(max_length=32)
    priority = models.IntegerField()
    backend = models.CharField(max_length=32)

    class Meta:  # noqa: D106 - Django's
        apps = _APPS
        app_label = "duly"
        managed = False
        db_table = SCHEDULES

    def __str__(self) -> str:
        return self.name


class TaskExecution(models.Model):
    """One execution that a schedule requested."""

    id = models.UUIDField(primary_key=True)
    scheduled_task = models.ForeignKey(ScheduledTask, models.DO_NOTHING, related_name="executions")
    status = models.CharField(max_length=20)
    created_at = models.DateTimeField()
    dispatch_count = models.PositiveIntegerField()
    completed_at = models.DateTimeField(null=True)

    class Meta:  # noqa: D106 - Django's
        apps = _APPS
        app_label = "duly"
        managed = False
        db_table = EXECUTIONS
        ordering: ClassVar[list[str]] = ["created_at"]

    def __str__(self) -> str:
        return str(self.id)


class _RowNotImported(BadOption):
    """A row cannot be imported."""


@dataclass
class ImportReport:
    """The result of an import."""

    schedules: int = 0
    """The number of schedules imported from the admin."""
    paused: list[str] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)
    """Schedules with a missed instant. The import fires it once."""
    executions: int = 0
    """How many executions of django-periodic-tasks had not run yet and were enqueued here."""
    notes: list[str] = field(default_factory=list)
    not_imported: dict[str, str] = field(default_factory=dict)
    """Rows that could not be imported, and why."""

    def lines(self) -> Iterator[str]:
        """Return the report as lines of text."""
        yield f"{self.schedules} schedules of the admin imported"
        yield f"{self.executions} executions that had not run moved to duly"
        yield from (f"paused, as it was disabled: {name}" for name in self.paused)
        yield from (f"fired once, since an instant was missed: {name}" for name in self.fired)
        yield from self.notes
        yield from (f"not changed: {name}: {reason}" for name, reason in self.not_imported.items())


def import_periodic_tasks(database: str = "default") -> ImportReport:
    """Import every row that can be imported. A later import tries the others again."""
    report = ImportReport()
    columns = _columns(database, EXECUTIONS)
    if not columns:
        report.notes.append(f"there are no tables of django-periodic-tasks in {database!r}")
        return report
    register_project_tasks()
    with _in_transactions(database):
        # In the same transaction as the pauses, so that no disabled schedule fires in between.
        sync_code_schedules()
        _take_executions(database, report, has_count="dispatch_count" in columns)
        rows = ScheduledTask.objects.using(database).select_for_update().order_by("id")
        for row in rows.filter(source__in=(_CODE, _DATABASE)):
            with _reporting_errors(f"schedule {row.name!r}", database, report):
                _take_schedule(row, report)
    return report


def has_rows(database: str) -> bool:
    """Return whether some schedules have not been imported."""
    if not _columns(database, SCHEDULES):
        return False
    found = ScheduledTask.objects.using(database).filter(source__in=(_CODE, _DATABASE))
    return found.exists()


def adopt(execution_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """Return the run of an execution that a message of django-periodic-tasks names.

    Return None if the execution has run, or if one of duly's own workers runs it.
    """
    places = (scheduler_app().database, *connections)
    database = next((alias for alias in places if _columns(alias, EXECUTIONS)), None)
    if database is None:
        raise BadOption(
            f"execution {execution_id} was made by django-periodic-tasks, whose tables are gone, "
            f"so duly cannot know whether it has run; keep the tables until the queues are empty"
        )
    with transaction.atomic(using=database):
        rows = TaskExecution.objects.using(database).select_related("scheduled_task")
        rows = rows.defer("dispatch_count")  # Tables of earlier versions lack this column.
        row = rows.select_for_update(of=("self",)).filter(pk=execution_id).first()
        if row is None:
            log_notice(f"execution {execution_id} is not in {EXECUTIONS}, so it is skipped")
            return None
        app, task = _target_of(row.scheduled_task)
        if row.status != _PENDING:
            run_ids = app.store.find_by_key(_key(row))
            run_id = run_ids[0] if run_ids else None
        else:
            run_id = _take(row, app, task, args, kwargs)
    return run_id if app.registry is scheduler_app().registry else None


def _take_executions(database: str, report: ImportReport, *, has_count: bool) -> None:
    """Import the executions that django-periodic-tasks would still dispatch."""
    # A worker of django-periodic-tasks locks an execution while it runs it.
    rows = TaskExecution.objects.using(database).select_for_update(skip_locked=True, of=("self",))
    rows = rows.select_related("scheduled_task").filter(status=_PENDING)
    most = getattr(settings, "PERIODIC_TASKS_MAX_DISPATCH_ATTEMPTS", MOST_DISPATCHES)
    given_up = 0
    looked_at = set()
    for row in rows if has_count else rows.defer("dispatch_count"):
        looked_at.add(row.pk)
        schedule = row.scheduled_task
        is_worn = has_count and row.dispatch_count >= most
        if is_worn or not (schedule.enabled or schedule.source == _TAKEN):
            given_up += 1
            continue
        with _reporting_errors(f"execution {row.id} of {schedule.name!r}", database, report):
            _take(row, *_target_of(schedule), tuple(schedule.args), schedule.kwargs)
            report.executions += 1
    if given_up:
        report.notes.append(
            f"{given_up} executions stay pending: their schedule is disabled, or they were "
            f"dispatched {most} times without success"
        )
    pending = TaskExecution.objects.using(database).filter(status=_PENDING)
    locked = len(set(pending.values_list("pk", flat=True)) - looked_at)
    if locked:
        report.notes.append(
            f"{locked} executions are locked, probably by workers of django-periodic-tasks that "
            "run them: import again after those workers have ended"
        )


def _take(
    row: TaskExecution, app: Duly, task: Task, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> str | None:
    """Enqueue a run for a pending, locked execution, and return the run's id."""
    definition = app.registry.get(register_task(task)[1].name)
    called = EngineTask[..., Any](app, definition).using(
        key=_key(row),
        queue=task.queue_name,
        priority=task.priority,
        tags={"schedule": _name_for(row.scheduled_task)},
    )
    try:
        run_id: str | None = called.enqueue(*args, **kwargs).id
    except KeyConflict as conflict:
        run_id = conflict.run_id
    rows = TaskExecution.objects.using(row._state.db).filter(pk=row.pk)  # noqa: SLF001 - Django's
    rows.update(status=_COMPLETED, completed_at=timezone.now())
    return run_id


def _take_schedule(row: ScheduledTask, report: ImportReport) -> None:
    name = _name_for(row)
    if row.source == _CODE:
        entry = schedule_registry.get_entries().get(row.name)
        if entry is None:
            report.notes.append(f"schedule {row.name!r} is no longer in the code")
            _mark(row)
            return
        app = on_django_connection(entry.define())
        is_new = True
    else:
        app, task = _target_of(row)
        known = _find(app, name)
        if known is not None and known.source == "code":
            raise _RowNotImported(f"code defines a schedule {name!r}; rename one of the two")
        if known is not None and (name != row.name or known.task != register_task(task)[1].name):
            raise _RowNotImported(f"there is another schedule {name!r} here; rename one of the two")
        is_new = known is None
        if is_new:
            _add(row, name, app, task)
            report.schedules += 1
        if name != row.name:
            report.notes.append(f"schedule {row.name!r} is called {name!r} here")
    if is_new and not row.enabled:
        app.schedules.pause(name, actor=ACTOR, reason="disabled in django-periodic-tasks")
        report.paused.append(name)
    elif is_new and row.next_run_at is not None:
        _fire_if_missed(app, name, row.next_run_at, report)
    _mark(row)


def _fire_if_missed(app: Duly, name: str, due: datetime, report: ImportReport) -> None:
    due = timezone.make_aware(due) if timezone.is_naive(due) else due
    last = app.schedules.firings(name, limit=1)
    # A duly scheduler that ran before the import may have fired the instant.
    if due > timezone.now() or (last and last[0].instant >= due):
        return
    # At a clock change, croniter and duly may compute different instants.
    if not app.schedules.backfill(name, due, due + _SECOND, actor=ACTOR):
        app.schedules.run_now(name, actor=ACTOR)
    report.fired.append(name)


def _add(row: ScheduledTask, name: str, app: Duly, task: Task) -> None:
    definition = app.registry.get(register_task(task)[1].name)
    app.schedules.add(
        name,
        EngineTask(app, replace(definition, queue=task.queue_name, priority=task.priority)),
        cron=row.cron_expression,
        tz=row.timezone,
        seconds_field="last",
        args=row.args,
        kwargs=row.kwargs,
        on_duplicate="error",
        actor=ACTOR,
        # django-periodic-tasks enqueues every instant, even while the last run is live.
        overlap="allow",
    )


def _mark(row: ScheduledTask) -> None:
    """Mark a schedule so that schedulers of django-periodic-tasks no longer fire it."""
    taken = _TAKEN if row.enabled else _TAKEN_DISABLED
    rows = ScheduledTask.objects.using(row._state.db).filter(pk=row.pk)  # noqa: SLF001 - Django's
    rows.update(source=taken, enabled=False, next_run_at=None)


def _target_of(row: ScheduledTask) -> tuple[Duly, Task]:
    """Return the application that fires a schedule, and the task with the schedule's options."""
    module, _, attribute = row.task_path.rpartition(".")
    task = getattr(sys.modules.get(module), attribute, None)
    if not isinstance(task, TASK_CLASSES):
        raise _RowNotImported(f"there is no task {row.task_path}")
    asked = task.using(
        queue_name=row.queue_name or None, priority=row.priority, backend=row.backend or None
    )
    return on_django_connection(register_task(asked)[0]), asked


def on_django_connection(app: Duly) -> Duly:
    """Return an application with the same tasks that takes part in Django's open transaction."""
    if not isinstance(app, DjangoDuly) or not app.runs_tasks:
        return app
    other = DjangoDuly(app.database)
    other.registry, other.bus = app.registry, app.bus
    return other


def _find(app: Duly, name: str) -> ScheduleRecord | None:
    return next(iter(app.store.list_schedules(ScheduleFilter(name, removed=True))), None)


def _name_for(row: ScheduledTask) -> str:
    return _NOT_IN_NAMES.sub("-", row.name.strip())


def _key(row: TaskExecution) -> str:
    return f"django-periodic-tasks:{row.pk}"


def _columns(database: str, table: str) -> set[str]:
    connection = connections[database]
    with connection.cursor() as cursor:
        if table not in connection.introspection.table_names(cursor):
            return set()
        found = connection.introspection.get_table_description(cursor, table)
    return {column.name for column in found}


@contextmanager
def _in_transactions(database: str) -> Iterator[None]:
    """Open a transaction, or a savepoint, in a database and in all databases with duly's tables.

    The transaction that marks rows as taken commits last. If the process is killed before that, the
    next import finds the schedules and the keys of the runs, and only marks the rows.
    """
    with ExitStack() as stack:
        for alias in dict.fromkeys((database, *databases())):
            stack.enter_context(transaction.atomic(using=alias))
        yield


@contextmanager
def _reporting_errors(what: str, database: str, report: ImportReport) -> Iterator[None]:
    """Roll back the import of a row that fails, and report the reason."""
    try:
        with _in_transactions(database):
            yield
    except StoreError:
        raise
    except (PayloadError, TypeError):
        # The error message may show the arguments, which may contain a secret.
        report.not_imported[what] = "its arguments do not fit the parameters of the task"
    except (DulyError, InvalidTask, ImproperlyConfigured) as error:
        report.not_imported[what] = str(error)
