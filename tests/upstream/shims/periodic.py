"""django-periodic-tasks 0.2 as `duly.integrations.django`; a pytest plugin.

Its tests write rows of `ScheduledTask`. duly's schedules are written by its own functions, so the
class below calls those, and reads everything back from duly's tables.
"""

import importlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
from aliases import Alias
from django.db import IntegrityError, connection

OURS = "duly.integrations.django"
DUMMY_BACKEND_PATH = "django.tasks.backends.dummy.DummyBackend"
_MOVE = "UPDATE duly_schedules SET next_at = %s, look_at = %s WHERE name = %s"


class Rows(list):
    """Schedules that a filter found."""

    def count(self):
        return len(self)

    def first(self):
        return self[0] if self else None

    def exists(self):
        return bool(self)

    def __getattr__(self, name):
        raise NotImplementedError(f"duly's schedules have no {name} that writes")


class Objects:
    """`ScheduledTask.objects`."""

    def create(self, **values):
        made = ScheduledTask(**values)
        made.save()
        return made

    def get(self, **wanted):
        (found,) = self.filter(**wanted)
        return found

    def all(self):
        return self.filter()

    def count(self):
        return len(self.filter())

    def filter(self, **wanted):
        model = importlib.import_module(f"{OURS}.models").Schedule
        found = (ScheduledTask._of(row.name) for row in model.objects.order_by("name"))
        return Rows(each for each in found if _fits(each, wanted))


def _fits(row, wanted):
    for name, value in wanted.items():
        field, _, lookup = name.partition("__")
        own = getattr(row, field)
        if own not in value if lookup == "in" else own != value:
            return False
    return True


class ScheduledTask:
    """A schedule of duly's, with the fields of a `ScheduledTask`."""

    Source = SimpleNamespace(CODE="code", DATABASE="database")
    objects = Objects()

    def __init__(self, **values):
        self._is_new = True
        defaults = {
            "timezone": "UTC", "args": [], "kwargs": {}, "source": "database", "enabled": True,
            "queue_name": "default", "priority": 0, "backend": "default", "next_run_at": None,
            "last_run_at": None, "total_run_count": 0,
        }  # fmt: skip
        self.__dict__.update(defaults | values)

    @classmethod
    def _of(cls, name):
        found = cls(name=name)
        found._is_new = False
        found.refresh_from_db()
        return found

    def __eq__(self, other):
        return self.name == other.name

    __hash__ = None

    @property
    def pk(self):
        return self.name

    def refresh_from_db(self):
        """Read all of it from duly's tables."""
        row = importlib.import_module(f"{OURS}.models").Schedule.objects.get(name=self.name)
        app = importlib.import_module(f"{OURS}.project").app_of("default", row.task)
        trigger = importlib.import_module("duly.core.schedule").read_trigger(row.trigger)
        args, kwargs = app.registry.get(row.task).codec.decode(row.arguments)
        fired = [firing for firing in app.schedules.firings(self.name) if firing.run_id]
        self.task_path, _, backend = row.task.partition("@")
        self.__dict__.update(
            cron_expression=trigger.with_seconds_last, timezone=trigger.zone,
            args=list(args), kwargs=kwargs, queue_name=row.queue, priority=row.priority,
            backend=backend or "default", enabled=row.state == "active",
            source="code" if row.source == "code" else "database",
            next_run_at=row.next_at if row.state == "active" else None,
            last_run_at=fired[0].instant if fired else None, total_run_count=len(fired),
            created_at=row.created_at, updated_at=row.updated_at,
        )  # fmt: skip

    def save(self, **_options):
        """Have duly write it: a new one is added, and a change of its state or time is made."""
        model = importlib.import_module(f"{OURS}.models").Schedule
        app = importlib.import_module(f"{OURS}.app").scheduler_app()
        asked = (self.enabled, self.next_run_at)
        if self._is_new:
            self._add(model)
        else:
            app = importlib.import_module(f"{OURS}.project").app_of("default", self.task_path)
        (app.schedules.resume if asked[0] else app.schedules.pause)(self.name)
        if asked[1] is not None:
            # As if its instant had come, or were further off. duly itself fires it.
            due = int(asked[1].timestamp() * 1_000_000)
            with connection.cursor() as cursor:
                cursor.execute(_MOVE, [due, due, self.name])
        self._is_new = False
        self.refresh_from_db()

    def _add(self, model):
        if self.source == "code":
            raise NotImplementedError("duly's code schedules are written by sync alone")
        if model.objects.filter(name=self.name).exists():
            raise IntegrityError(f"there is a schedule {self.name!r} already")
        periodic = importlib.import_module(f"{OURS}.periodic")
        task = periodic.resolve_task(self.task_path)
        entry = periodic.ScheduleEntry(
            task, self.cron_expression, self.name, self.timezone, self.args, self.kwargs,
            self.queue_name, self.priority, self.backend,
        )  # fmt: skip
        scheduled = importlib.import_module(f"{OURS}.code_schedules")
        app, definition = scheduled.register_task(entry.chosen())
        fired = replace(definition, queue=self.queue_name, priority=self.priority)
        app.schedules.add(
            self.name, scheduled.EngineTask(app, fired), cron=self.cron_expression,
            tz=self.timezone, seconds_field="last", args=self.args, kwargs=self.kwargs,
            overlap="allow",
        )  # fmt: skip


@pytest.fixture(autouse=True)
def no_schedules_of_other_tests():
    """Forget what other tests registered: each of them is a project of its own."""
    yield
    app = importlib.import_module(f"{OURS}.app").scheduler_app()
    app.schedules._defined.clear()


def __getattr__(name):
    # Django's tasks can be imported once its settings are there.
    if name in {"task", "default_task_backend"}:
        return getattr(importlib.import_module("django.tasks"), name)
    raise AttributeError(name)


Alias(
    "django_periodic_tasks",
    {
        "": (OURS,),
        "admin": (f"{OURS}.admin",),
        "apps": (f"{OURS}.apps",),
        "compat": ("periodic", f"{OURS}.tasks_api"),
        "conf": (f"{OURS}.periodic",),
        "cron": (f"{OURS}.periodic",),
        "enqueue": (),
        "decorators": (f"{OURS}.executions", f"{OURS}.periodic"),
        "models": ("periodic", f"{OURS}.models"),
        "registry": (f"{OURS}.periodic",),
        "scheduler": (f"{OURS}.periodic",),
        "sync": (f"{OURS}.periodic",),
        "task_resolver": (f"{OURS}.periodic",),
    },
    names={"DUMMY_BACKEND_PATH", "ScheduledTask", "default_task_backend", "task"},
).install()
