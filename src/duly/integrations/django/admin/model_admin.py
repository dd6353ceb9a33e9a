"""Selects the database of an admin page, and limits how many rows the page counts."""

from typing import Any
from urllib.parse import parse_qs

from django.contrib import admin
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest
from django.utils.functional import cached_property

from duly.integrations.django.project import databases, register_project_tasks

_PARAMETER = "database"
_COUNTED = 10_000


def database_of(request: HttpRequest) -> str:
    """Return the requested database, or the first one if none was requested."""
    known = databases()
    if not known:
        raise Http404(
            "no database in DATABASES has duly tables; use manage.py duly for the database of a url"
        )
    # The page of one run keeps the filters of the list that it was opened from.
    kept = parse_qs(request.GET.get("_changelist_filters", "")).get(_PARAMETER, [None])[0]
    asked = request.GET.get(_PARAMETER, kept)
    return asked if asked in known else known[0]


class DatabaseFilter(admin.SimpleListFilter):
    """Offers the databases if there is more than one."""

    title = "database"
    parameter_name = _PARAMETER

    def lookups(self, _request: HttpRequest, _admin: Any) -> list[tuple[str, str]]:  # noqa: ANN401
        """Return the aliases of the databases."""
        known = databases()
        return [(alias, alias) for alias in known] if len(known) > 1 else []

    def queryset(self, _request: HttpRequest, queryset: Any) -> Any:  # noqa: ANN401 - Django's
        """Return the rows unchanged: the queryset already reads from the selected database."""
        return queryset


class BoundedPaginator(Paginator):
    """Counts rows only up to a limit, since there may be millions of runs."""

    @cached_property
    def count(self) -> int:
        """Return the number of rows, up to the limit."""
        return self.object_list[:_COUNTED].count()


class EngineModelAdmin(admin.ModelAdmin):
    """Shows rows that duly wrote. Changes go through duly's API."""

    paginator = BoundedPaginator
    show_full_result_count = False
    actions_selection_counter = True

    def get_queryset(self, request: HttpRequest) -> Any:  # noqa: ANN401 - Django's
        """Return the rows of the requested database."""
        return super().get_queryset(request).using(database_of(request))

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> Any:  # noqa: ANN401
        """Show a list. Tasks are registered first: they declare which arguments are secret."""
        register_project_tasks()
        return super().changelist_view(request, extra_context)

    def changeform_view(self, request: HttpRequest, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        """Show one object. Tasks are registered first, as for a list."""
        register_project_tasks()
        return super().changeform_view(request, *args, **options)
