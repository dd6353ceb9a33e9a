"""Admin pages to view, pause and run schedules, and to change those that the form can express."""

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html, format_html_join

from duly.api.schedules import Schedules
from duly.core.call_view import CallView
from duly.core.cron import Cron
from duly.core.display import display
from duly.core.schedule import read_trigger
from duly.errors import BadSchedule, DulyError
from duly.integrations.django.admin.forms import ScheduleForm, form_can_express
from duly.integrations.django.admin.model_admin import (
    DatabaseFilter,
    EngineModelAdmin,
    database_of,
)
from duly.integrations.django.models import Schedule
from duly.integrations.django.project import app_of

_LAST_FIRINGS = 20
_WHY = "in the admin"
ScheduleAction = Callable[[Schedules, str, str], None]
_FORM = (
    ("name", "task"),
    ("cron", "timezone"),
    ("args", "kwargs"),
    ("queue_name", "priority"),
    ("misfire", "overlap"),
)


@admin.register(Schedule)
class ScheduleAdmin(EngineModelAdmin):
    """All schedules by name, without removed ones."""

    form = ScheduleForm
    list_display = ("name", "task", "when", "arguments_shown", "next_at", "state", "source")
    list_filter = ("state", "source", DatabaseFilter)
    search_fields = ("name", "task")
    sortable_by = ()
    actions = ("enable", "disable", "run_now")

    def get_fields(self, request: HttpRequest, schedule: Schedule | None = None) -> Any:  # noqa: ANN401
        """Return the fields of the form for a new or editable schedule, or of a read-only one."""
        known = () if schedule is None else (*self.get_readonly_fields(request, schedule),)
        if schedule is None or self.has_change_permission(request, schedule):
            return (*_FORM, *(name for name in known if name != "name"))
        return ("name", "task", "when", "arguments_shown", ("queue", "priority"), *known[1:])

    def get_readonly_fields(
        self, _request: HttpRequest, schedule: Schedule | None = None
    ) -> tuple[str, ...]:
        """Return the fields that cannot be edited, such as the name of an existing schedule."""
        if schedule is None:
            return ()
        return ("name", "state", "reason", "source", "place", "next_at", "firings")

    # -- permissions --

    def has_change_permission(self, request: HttpRequest, schedule: Any = None) -> bool:  # noqa: ANN401
        """Return False for a schedule that the form cannot express, or that is defined in code.

        The next deploy would undo a change of a schedule that is defined in code.
        """
        is_editable = schedule is None or (
            schedule.source == "runtime" and form_can_express(schedule)
        )
        return is_editable and super().has_change_permission(request, schedule)

    def has_delete_permission(self, request: HttpRequest, schedule: Any = None) -> bool:  # noqa: ANN401
        """Return False for a schedule defined in code: the next deploy would create it again."""
        is_deletable = schedule is None or schedule.source == "runtime"
        return is_deletable and super().has_delete_permission(request, schedule)

    # -- display --

    @admin.display
    def when(self, schedule: Schedule) -> str:
        """Describe the trigger in words."""
        try:
            trigger = read_trigger(schedule.trigger)
        except BadSchedule as error:  # This machine does not know the time zone.
            return str(error)
        words = trigger.in_words()
        return f"{words} ({trigger.zone})" if isinstance(trigger, Cron) else words

    @admin.display(description="arguments")
    def arguments_shown(self, schedule: Schedule) -> str:
        """Show the arguments shortened, without secret ones."""
        tasks = app_of(schedule._state.db, schedule.task).registry  # noqa: SLF001 - Django's
        shown = CallView(tasks).arguments(schedule)
        return "(hidden)" if shown is None else display(shown)

    @admin.display(description="last firings")
    def firings(self, schedule: Schedule) -> str:
        """List the last firings, each with its run."""
        found = _schedules(schedule).firings(schedule.name, limit=_LAST_FIRINGS)
        rows = (
            (
                fired.instant,
                fired.outcome,
                fired.run_state or "",
                fired.reason or "",
                _link(fired.run_id),
            )
            for fired in found
        )
        return format_html(
            "<table>{}</table>",
            format_html_join(
                "", "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows
            ),
        )

    # -- actions --

    def save_model(self, request: HttpRequest, _obj: Any, form: ScheduleForm, change: bool) -> None:  # noqa: ANN401, FBT001
        """Store the schedule through duly, as if code had added it at run time."""
        form.put(actor=request.user.get_username(), is_new=not change)

    def delete_model(self, request: HttpRequest, schedule: Schedule) -> None:
        """Remove the schedule. Its firings stay on record."""
        actor = request.user.get_username()
        _schedules(schedule).remove(schedule.name, actor=actor, reason=_WHY)

    def delete_queryset(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """Remove the selected schedules. Django has checked the permission for each."""
        for schedule in queryset:
            self.delete_model(request, schedule)

    def get_form(self, request: HttpRequest, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Return the form class for the database that stores the schedule."""
        form = super().get_form(request, *args, **options)
        return type(form.__name__, (form,), {"database": database_of(request)})

    @admin.action(description="Enable selected schedules", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """Let the selected schedules fire again."""
        self._each(request, queryset, "enabled", _resume)

    @admin.action(description="Disable selected schedules", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """Let the selected schedules skip what is due. This outlasts deploys and restarts."""
        self._each(request, queryset, "disabled", _pause)

    @admin.action(description="Run selected schedules now", permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """Fire the selected schedules once, in addition to their due instants."""
        self._each(request, queryset, "run", _run_now)

    def _each(self, request: HttpRequest, queryset: Any, what: str, act: ScheduleAction) -> None:  # noqa: ANN401
        done = 0
        for schedule in queryset:
            try:
                act(_schedules(schedule), schedule.name, request.user.get_username())
                done += 1
            except DulyError as error:
                self.message_user(request, str(error), messages.ERROR)
        if done:
            self.message_user(request, f"{done} {what}.", messages.SUCCESS)


def _resume(schedules: Schedules, name: str, actor: str) -> None:
    schedules.resume(name, actor=actor, reason=_WHY)


def _pause(schedules: Schedules, name: str, actor: str) -> None:
    schedules.pause(name, actor=actor, reason=_WHY)


def _run_now(schedules: Schedules, name: str, actor: str) -> None:
    schedules.run_now(name, actor=actor)


def _schedules(schedule: Schedule) -> Schedules:
    return app_of(schedule._state.db, schedule.task).schedules  # noqa: SLF001 - Django's


def _link(run_id: str | None) -> str:
    if run_id is None:
        return ""
    return format_html(
        '<a href="{}">{}</a>', reverse("admin:duly_run_change", args=[run_id]), run_id
    )
