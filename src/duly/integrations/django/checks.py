"""System checks that report errors in a project's settings, each with a remedy."""

import traceback
from collections.abc import Iterable, Sequence
from importlib import util
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.core import checks
from django.core.checks import CheckMessage, Error
from django.db import connections

from duly.errors import SchemaMismatch
from duly.integrations.django.task_modules import DEFINITION_ERRORS, discover_tasks

if TYPE_CHECKING:
    from duly.integrations.django.backend import DulyBackend


def check_backend(backend: "DulyBackend") -> Iterable[CheckMessage]:
    """Check the settings of one duly backend."""
    if not apps.is_installed("duly.integrations.django"):
        yield Error(
            f"TASKS[{backend.alias!r}] uses duly, but its Django application is not installed",
            hint="add 'duly.integrations.django' to INSTALLED_APPS and run manage.py migrate",
            id="duly.E001",
        )
    if backend.problem is not None:
        yield Error(backend.problem, id="duly.E005")
    elif "url" not in backend.options:
        alias = backend.options.get("database", "default")
        yield from _check_database(alias, f"TASKS[{backend.alias!r}]['OPTIONS']['database']")


def _check_database(alias: str, where: str) -> Iterable[CheckMessage]:
    if alias not in connections:
        yield Error(
            f"{where} names the database {alias!r}, which is not in DATABASES",
            hint=f"use one of {', '.join(sorted(connections))}",
            id="duly.E002",
        )
        return
    connection = connections[alias]
    if connection.vendor not in {"sqlite", "postgresql"}:
        yield Error(
            f"the database {alias!r} is a {connection.display_name}, which duly does not support",
            hint="use an SQLite or PostgreSQL database: OPTIONS={'database': …} or {'url': …}",
            id="duly.E003",
        )
    elif connection.vendor == "postgresql" and util.find_spec("psycopg") is None:
        yield Error(
            "duly needs psycopg 3 for PostgreSQL, but only psycopg2 is installed",
            hint="pip install 'psycopg[binary]'; Django prefers psycopg 3 to psycopg2 as well",
            id="duly.E004",
        )
    elif connection.vendor == "sqlite":
        mode = connection.settings_dict["OPTIONS"].get("transaction_mode")
        if str(mode).upper() not in {"IMMEDIATE", "EXCLUSIVE"}:
            yield checks.Warning(
                f"transactions on {alias!r} that read before they write fail with 'database is "
                f"locked' while a worker writes",
                hint="set DATABASES[…]['OPTIONS']['transaction_mode'] = 'IMMEDIATE'",
                id="duly.W001",
            )


def check_apps(**_options: Any) -> Iterable[CheckMessage]:  # noqa: ANN401 - Django's
    """Check that a backend, or schedules of other backends, use the installed application."""
    from duly.integrations.django.app import scheduler_app  # noqa: PLC0415 - reads settings
    from duly.integrations.django.backend import backends  # noqa: PLC0415 - as above
    from duly.integrations.django.code_schedules import schedule_registry  # noqa: PLC0415 - as above

    found, scheduler = backends(), scheduler_app()
    if scheduler.registry.names():
        checked = {backend.options.get("database", "default") for backend in found}
        if scheduler.database not in checked:
            yield from _check_database(scheduler.database, "DULY_DATABASE")
    elif not found and not schedule_registry.get_entries():
        yield checks.Warning(
            "duly is installed, but no backend in TASKS uses duly",
            hint="TASKS = {'default': {'BACKEND': 'duly.integrations.django.DulyBackend'}}",
            id="duly.W002",
        )


def check_tasks(**_options: Any) -> Iterable[CheckMessage]:  # noqa: ANN401 - Django's
    """Check that the project's task modules can be imported, with decorators in the right order."""
    try:
        discover_tasks()
    except DEFINITION_ERRORS as error:
        lines = traceback.extract_tb(error.__traceback__)
        places = [f"{line.filename}:{line.lineno}" for line in lines if line.name == "<module>"]
        yield Error(
            f"{places[-1]} cannot be imported: {error}",
            hint=(
                "put @scheduled_task(…) above @task(…), and @exactly_once and @duly_options(…) "
                "below it"
            ),
            id="duly.E006",
        )


def check_workers(
    databases: Sequence[str] | None = None,
    **_options: Any,  # noqa: ANN401 - Django's
) -> Iterable[CheckMessage]:
    """Check that the tables and a worker exist, for `check --deploy --database default`."""
    from duly.integrations.django.app import DjangoDuly  # noqa: PLC0415 - reads settings
    from duly.integrations.django.backend import backends  # noqa: PLC0415 - as above

    for backend in (found for found in backends() if found.problem is None):
        app = backend.app
        if not isinstance(app, DjangoDuly) or app.database not in (databases or ()):
            continue
        try:
            workers = app.workers.list()
        except SchemaMismatch as error:
            yield checks.Warning(str(error), id="duly.W003")
            continue
        if not any(worker.state == "live" for worker in workers):
            yield checks.Warning(
                f"no worker runs the tasks of TASKS[{backend.alias!r}]",
                hint=f"python manage.py duly{_databases_setting(backend.alias)} worker",
                id="duly.W004",
            )

    yield from _check_import(databases or ())


def _check_import(databases: Sequence[str]) -> Iterable[CheckMessage]:
    from duly.integrations.django.cutover import has_rows  # noqa: PLC0415 - reads settings

    for alias in databases:
        if has_rows(alias):
            yield checks.Warning(
                f"schedules of django-periodic-tasks in {alias!r} were not imported, so the "
                "schedules of its admin do not fire, and disabled ones do",
                hint=f"python manage.py duly import-periodic-tasks --database {alias}",
                id="duly.W005",
            )


def _databases_setting(alias: str) -> str:
    return "" if alias == "default" else f" --backend {alias}"
