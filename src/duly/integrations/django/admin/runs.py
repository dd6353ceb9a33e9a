"""Admin pages to view, retry and cancel runs."""

import uuid
from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Q
from django.http import HttpRequest
from django.utils.html import format_html

from duly import Duly
from duly.core.call_view import CallView
from duly.core.display import display, display_call
from duly.errors import DulyError
from duly.integrations.django.admin.model_admin import (
    DatabaseFilter,
    EngineModelAdmin,
    database_of,
)
from duly.integrations.django.models import DeadLetter, Execution, Run
from duly.integrations.django.project import app_of, tasks_in

_HIDDEN = "(hidden: the task is unknown here, or these arguments do not fit it)"
_WHY = "in the admin"
RunAction = Callable[[Duly, str, str], bool]
"""Acts on a run for the named actor, and returns whether the action applied."""


class TaskFilter(admin.SimpleListFilter):
    """Offers the tasks that the project registers, without reading all runs to find them."""

    title = parameter_name = "task"

    def lookups(self, request: HttpRequest, _admin: Any) -> list[tuple[str, str]]:  # noqa: ANN401
        """Return the names of the tasks."""
        return [(name, name) for name in tasks_in(database_of(request))]

    def queryset(self, _request: HttpRequest, queryset: Any) -> Any:  # noqa: ANN401 - Django's
        """Return the runs of one task."""
        return queryset if self.value() is None else queryset.filter(task=self.value())


class QueueFilter(admin.SimpleListFilter):
    """Offers the queues that have live runs or were paused."""

    title = parameter_name = "queue"

    def lookups(self, request: HttpRequest, _admin: Any) -> list[tuple[str, str]]:  # noqa: ANN401
        """Return the names of the queues."""
        names = {queue.name for queue in app_of(database_of(request), "").queues.list()}
        asked = request.GET.get(self.parameter_name)
        return [(name, name) for name in sorted(names | ({asked} if asked else set()))]

    def queryset(self, _request: HttpRequest, queryset: Any) -> Any:  # noqa: ANN401 - Django's
        """Return the runs of one queue."""
        return queryset if self.value() is None else queryset.filter(queue=self.value())


@admin.register(Run)
class RunAdmin(EngineModelAdmin):
    """All runs, newest first."""

    list_display: tuple[str, ...] = (
        "id",
        "task",
        "call",
        "queue",
        "state",
        "attempt",
        "due_at",
        "finished_at",
    )
    list_filter: tuple[Any, ...] = ("state", TaskFilter, QueueFilter, DatabaseFilter)
    search_fields = ("id", "task", "key")
    search_help_text = "Full id, key or name of a task"
    sortable_by = ()
    fields = (
        ("id", "generation"),
        ("task", "queue", "priority"),
        "call_in_full",
        ("state", "cause", "parked"),
        ("attempt", "crashes"),
        ("created_at", "due_at"),
        ("claimed_at", "finished_at"),
        "worker_id",
        ("key", "tags"),
        "result_shown",
        "error",
        "trace",
    )
    readonly_fields = ("call_in_full", "result_shown", "trace")
    actions: tuple[str, ...] = ("retry", "cancel")

    def has_add_permission(self, _request: HttpRequest) -> bool:
        """Return False: tasks are enqueued by code."""
        return False

    def has_delete_permission(self, _request: HttpRequest, _run: Any = None) -> bool:  # noqa: ANN401
        """Return False: finished runs are deleted when their retention ends."""
        return False

    def has_change_permission(self, request: HttpRequest, run: Any = None) -> bool:  # noqa: ANN401
        """Return whether the user may act on runs. No user may edit a single run."""
        return run is None and super().has_change_permission(request)

    def get_search_results(
        self,
        _request: HttpRequest,
        queryset: Any,  # noqa: ANN401 - Django's
        search_term: str,
    ) -> tuple[Any, bool]:
        """Search only indexed columns."""
        if not search_term:
            return queryset, False
        try:
            return queryset.filter(id=uuid.UUID(search_term)), False
        except ValueError:
            return queryset.filter(Q(key=search_term) | Q(task=search_term)), False

    # -- display --

    @admin.display(description="arguments")
    def call(self, run: Run) -> str:
        """Show the arguments shortened, without secret ones."""
        stored = _calls(run).arguments(run)
        return _HIDDEN if stored is None else display(stored)

    @admin.display(description="call")
    def call_in_full(self, run: Run) -> str:
        """Show all arguments except secret ones."""
        stored = _calls(run).arguments(run)
        return _HIDDEN if stored is None else display_call(run.task, stored)

    @admin.display(description="result")
    def result_shown(self, run: Run) -> str:
        """Show the result of the task, without secrets."""
        return "-" if run.result is None else _calls(run).result(run) or _HIDDEN

    @admin.display(description="traceback")
    def trace(self, run: Run) -> str:
        """Show the traceback line by line."""
        return format_html("<pre>{}</pre>", run.traceback) if run.traceback else "-"

    # -- actions --

    @admin.action(description="Retry selected runs that have ended", permissions=["change"])
    def retry(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """Queue the selected runs again, under the same ids."""
        self._each(request, queryset, "queued again", _retry)

    @admin.action(description="Cancel selected runs that have not ended", permissions=["change"])
    def cancel(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """Cancel queued runs, and ask running ones to stop."""
        self._each(request, queryset, "cancelled, or cancellation requested", _cancel)

    def _each(self, request: HttpRequest, queryset: Any, what: str, act: RunAction) -> None:  # noqa: ANN401
        done = refused = 0
        for run_id, task in queryset.values_list("id", "task").iterator():
            try:
                is_done = act(app_of(queryset.db, task), str(run_id), request.user.get_username())
            except DulyError as error:
                self.message_user(request, str(error), messages.ERROR)
                is_done = False
            done, refused = done + is_done, refused + (not is_done)
        if done:
            self.message_user(request, f"{done} {what}.", messages.SUCCESS)
        if refused:
            self.message_user(request, f"{refused} not changed.", messages.WARNING)


@admin.register(DeadLetter)
class DeadLetterAdmin(RunAdmin):
    """Runs that failed or were interrupted."""

    list_display = ("id", "task", "call", "state", "cause", "error", "attempt", "finished_at")
    actions = ("retry", "discard")

    @admin.action(description="Cancel selected dead letters for good", permissions=["change"])
    def discard(self, request: HttpRequest, queryset: Any) -> None:  # noqa: ANN401 - Django's
        """End the selected dead letters as cancelled."""
        self._each(request, queryset, "cancelled", _discard)


@admin.register(Execution)
class ExecutionAdmin(RunAdmin):
    """Runs that schedules created."""

    list_display = ("id", "schedule", "task", "state", "attempt", "created_at", "finished_at")


def _retry(app: Duly, run_id: str, actor: str) -> bool:
    run = app.runs.get(run_id)
    if not run.is_final:
        return False
    run.retry(actor=actor, reason=_WHY)
    return True


def _cancel(app: Duly, run_id: str, actor: str) -> bool:
    run = app.runs.get(run_id)
    return not run.is_final and run.cancel(actor=actor, reason=_WHY) in {"cancelled", "requested"}


def _discard(app: Duly, run_id: str, actor: str) -> bool:
    return app.dead.discard(run_id, actor=actor, reason=_WHY).done == 1


def _calls(run: Run) -> CallView:
    return CallView(app_of(run._state.db, run.task).registry)  # noqa: SLF001 - Django's
