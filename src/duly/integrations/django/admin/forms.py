"""The form for schedules in the admin."""

from dataclasses import replace
from typing import Any, ClassVar

from django import forms

from duly import Duly
from duly import Task as EngineTask
from duly.core.call_view import CallView
from duly.core.cron import Cron
from duly.core.key import check_name, check_queue
from duly.core.schedule import Rules, read_rules, read_trigger
from duly.errors import BadOption, BadSchedule, DulyError
from duly.integrations.django.models import Schedule
from duly.integrations.django.project import app_of, tasks_in
from duly.integrations.django.task_body import task_of
from duly.integrations.django.tasks_api import InvalidTask
from duly.registry import Definition

_MISFIRE = {"latest": "run the latest", "all": "run them all", "skip": "skip them"}
_OVERLAP = {"skip": "skip it", "queue": "let it wait", "allow": "run both"}


class ScheduleForm(forms.ModelForm):
    """A cron schedule of a task that the project registers."""

    database: ClassVar[str]
    """The database that stores the schedule. The admin page sets it."""

    name = forms.CharField(max_length=200)
    task = forms.ChoiceField()
    cron = forms.CharField(
        help_text="Minute, hour, day, month and weekday, such as 0 2 * * *; then seconds, if any"
    )
    timezone = forms.CharField(initial="UTC", help_text="An IANA name, such as Europe/Paris")
    args = forms.JSONField(required=False, initial=list, help_text="A list")
    kwargs = forms.JSONField(required=False, initial=dict, help_text="Arguments by name")
    queue_name = forms.CharField(required=False, help_text="Empty: the queue of the task")
    priority = forms.IntegerField(
        required=False, min_value=-100, max_value=100, help_text="Empty: the priority of the task"
    )
    misfire = forms.ChoiceField(
        choices=list(_MISFIRE.items()), label="instants missed while no worker was live"
    )
    overlap = forms.ChoiceField(
        choices=list(_OVERLAP.items()),
        initial="allow",  # The same default as for schedules defined in code.
        label="an instant that comes while the last run is still live",
    )

    class Meta:  # noqa: D106 - Django's
        model = Schedule
        fields = ("name", "task", "priority")

    def __init__(self, *args: Any, instance: Schedule | None = None, **options: Any) -> None:  # noqa: ANN401
        known = {} if instance is None else _said_of(instance)
        initial = known | (options.pop("initial", None) or {})
        super().__init__(*args, instance=instance, initial=initial, **options)
        if "task" in self.fields:
            self.fields["task"].choices = [(name, name) for name in tasks_in(self.database)]

    def clean(self) -> dict[str, Any]:
        """Reject values that duly would reject, and show each error at its field."""
        said: dict[str, Any] = super().clean()
        if not self.errors:
            self._check_when(said)
            self._check_call(said)
        return said

    def _check_when(self, said: dict[str, Any]) -> None:
        try:
            Cron(said["cron"], said["timezone"], seconds_field="last")
        except BadSchedule as error:
            self.add_error("cron", str(error))

    def _check_call(self, said: dict[str, Any]) -> None:
        _, definition = self._found(said)
        args, kwargs = said["args"] or [], said["kwargs"] or {}
        if not isinstance(args, list) or not isinstance(kwargs, dict):
            self.add_error("args", "positional arguments must be a list, named arguments an object")
            return
        try:
            definition.codec.encode(tuple(args), kwargs)
        except (TypeError, DulyError) as error:
            self.add_error("args", str(error))
        self._check_place(task_of(definition), said)

    def _check_place(self, task: Any, said: dict[str, Any]) -> None:  # noqa: ANN401 - Django's
        asked = {"queue_name": said["queue_name"] or None, "priority": said["priority"]}
        try:
            task.using(**{name: value for name, value in asked.items() if value is not None})
            if said["queue_name"]:
                check_queue(said["queue_name"])
        except (InvalidTask, BadOption) as error:
            self.add_error("queue_name", str(error))

    def clean_name(self) -> str:
        """Reject the name of an existing schedule, so that the form never replaces it."""
        name: str = self.cleaned_data["name"]
        try:
            check_name("schedule", name)
        except BadOption as error:
            raise forms.ValidationError(str(error)) from None
        if Schedule.objects.using(self.database).filter(name=name).exists():
            raise forms.ValidationError(f"a schedule {name!r} already exists")
        return name

    def put(self, *, actor: str, is_new: bool) -> None:
        """Store the schedule through duly. Workers fire it from then on."""
        said = self.cleaned_data
        app, definition = self._found(said)
        fired = replace(
            definition,
            queue=said["queue_name"] or definition.queue,
            priority=definition.priority if said["priority"] is None else said["priority"],
        )
        app.schedules.add(
            self.instance.name,
            EngineTask(app, fired),
            cron=said["cron"],
            tz=said["timezone"],
            seconds_field="last",
            args=said["args"] or [],
            kwargs=said["kwargs"] or {},
            on_duplicate="error" if is_new else "replace",
            actor=actor,
            misfire=said["misfire"],
            overlap=said["overlap"],
        )

    def _found(self, said: dict[str, Any]) -> tuple[Duly, Definition]:
        app = app_of(self.database, said["task"])
        return app, app.registry.get(said["task"])

    def _post_clean(self) -> None:
        # `clean` has already rejected what duly would reject. The model has nothing to validate.
        if not self.errors and "name" in self.cleaned_data:
            self.instance.name = self.cleaned_data["name"]


def form_can_express(schedule: Schedule) -> bool:
    """Return whether the form can express all of a schedule and may show its arguments."""
    try:
        trigger = read_trigger(schedule.trigger)
    except BadSchedule:
        return False
    rules = read_rules(schedule.rules)
    tasks = app_of(schedule._state.db, schedule.task).registry  # noqa: SLF001 - Django's
    return (
        isinstance(trigger, Cron)
        and rules == Rules(misfire=rules.misfire, overlap=rules.overlap)
        and not CallView(tasks).has_secrets(schedule)
    )


def _said_of(schedule: Schedule) -> dict[str, Any]:
    if not schedule.name or not form_can_express(schedule):
        return {}
    trigger, rules = read_trigger(schedule.trigger), read_rules(schedule.rules)
    app = app_of(schedule._state.db, schedule.task)  # noqa: SLF001 - Django's
    args, kwargs = app.registry.get(schedule.task).codec.decode(schedule.arguments)
    return {
        "task": schedule.task,
        "cron": trigger.with_seconds_last if isinstance(trigger, Cron) else "",
        "timezone": trigger.zone if isinstance(trigger, Cron) else "",
        "args": list(args),
        "kwargs": kwargs,
        "queue_name": schedule.queue,
        "priority": schedule.priority,
        "misfire": rules.misfire,
        "overlap": rules.overlap,
    }
