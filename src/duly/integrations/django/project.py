"""Where operators find runs and schedules: duly's databases, and the applications in each."""

import sys
from contextlib import suppress
from types import ModuleType

from django.apps import apps
from django.db import connections, router

from duly.app import Duly
from duly.errors import BadOption
from duly.integrations.django.app import DjangoDuly, scheduler_app
from duly.integrations.django.backend import backends
from duly.integrations.django.code_schedules import register_task
from duly.integrations.django.task_modules import load_tasks
from duly.integrations.django.tasks_api import TASK_CLASSES, Task


def databases() -> list[str]:
    """Return the databases of Django's that have duly's tables, by their aliases."""
    found = dict.fromkeys(app.database for app in _apps())
    return [alias for alias in found if alias in connections and _has_tables(alias)]


def app_of(database: str, task: str) -> Duly:
    """Return the application in a database that knows a task; any one, if none does."""
    here = apps_in(database)
    return next((app for app in here if app.registry.find(task) is not None), here[0])


def tasks_in(database: str) -> list[str]:
    """Return the names of the tasks of a database, as far as they were met."""
    here = (app.registry for app in apps_in(database))
    return sorted({found.name for registry in here for found in registry.definitions()})


def apps_in(database: str) -> list[DjangoDuly]:
    """Return the applications whose runs lie in a database."""
    return [app for app in _apps() if app.database == database]


def apps_of_project() -> dict[str, Duly]:
    """Return the applications by what they are for; the last fires what other backends carry."""
    found = {f"TASKS[{backend.alias!r}]": backend.app for backend in backends()}
    scheduler = scheduler_app()
    return found | ({"other backends": scheduler} if scheduler.registry.names() else {})


def register_project_tasks() -> None:
    """Make known every task of the project, those of other backends to who fires schedules."""
    load_tasks()
    for task in project_tasks():
        # One that asks for what no execution has cannot be scheduled.
        with suppress(BadOption):
            register_task(task)


def project_tasks() -> list[Task]:
    """Return the tasks that the modules of installed applications define."""
    packages = tuple(config.name for config in apps.get_app_configs())
    found = (
        (name, attribute, value)
        for name, module in sorted(sys.modules.items())
        if isinstance(module, ModuleType) and _is_within(name, packages)
        for attribute, value in sorted(vars(module).items())
        if isinstance(value, TASK_CLASSES)
    )
    # What a module only imported is found where it was defined.
    return [task for name, attribute, task in found if task.module_path == f"{name}.{attribute}"]


def _has_tables(alias: str) -> bool:
    is_known = connections[alias].vendor in {"sqlite", "postgresql"}
    return is_known and bool(router.allow_migrate(alias, "duly"))


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _apps() -> list[DjangoDuly]:
    found = [*(backend.app for backend in backends()), scheduler_app()]
    return [app for app in found if isinstance(app, DjangoDuly)]
