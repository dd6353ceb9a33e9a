"""Finds the databases with duly's tables, and the applications and tasks of each."""

import sys
from contextlib import suppress
from types import ModuleType

from django.apps import apps
from django.db import connections, router

from duly import Duly
from duly.errors import BadOption
from duly.integrations.django.app import DjangoDuly, scheduler_app
from duly.integrations.django.backend import backends
from duly.integrations.django.code_schedules import register_task
from duly.integrations.django.task_modules import load_tasks
from duly.integrations.django.tasks_api import TASK_CLASSES, Task


def databases() -> list[str]:
    """Return the aliases of the Django databases that have duly's tables."""
    found = dict.fromkeys(app.database for app in _apps())
    return [alias for alias in found if alias in connections and _has_tables(alias)]


def app_of(database: str, task: str) -> Duly:
    """Return the application in a database that has a task, or any of them if none has it."""
    here = apps_in(database)
    return next((app for app in here if app.registry.find(task) is not None), here[0])


def tasks_in(database: str) -> list[str]:
    """Return the names of the tasks of a database that are registered so far."""
    here = (app.registry for app in apps_in(database))
    return sorted({found.name for registry in here for found in registry.definitions()})


def apps_in(database: str) -> list[DjangoDuly]:
    """Return the applications whose runs are in a database."""
    return [app for app in _apps() if app.database == database]


def apps_of_project() -> dict[str, Duly]:
    """Return the applications by purpose. The last one fires tasks of other backends."""
    found = {f"TASKS[{backend.alias!r}]": backend.app for backend in backends()}
    scheduler = scheduler_app()
    return found | ({"other backends": scheduler} if scheduler.registry.names() else {})


def register_project_tasks() -> None:
    """Register every task of the project. Tasks of other backends go to the scheduler."""
    load_tasks()
    for task in project_tasks():
        # A task that needs features an execution lacks cannot be scheduled.
        with suppress(BadOption):
            register_task(task)


def project_tasks() -> list[Task]:
    """Return the tasks that modules of installed applications define."""
    packages = tuple(config.name for config in apps.get_app_configs())
    found = (
        (name, attribute, value)
        for name, module in sorted(sys.modules.items())
        if isinstance(module, ModuleType) and _is_within(name, packages)
        for attribute, value in sorted(vars(module).items())
        if isinstance(value, TASK_CLASSES)
    )
    # An imported task is found in the module that defines it.
    return [task for name, attribute, task in found if task.module_path == f"{name}.{attribute}"]


def _has_tables(alias: str) -> bool:
    is_known = connections[alias].vendor in {"sqlite", "postgresql"}
    return is_known and bool(router.allow_migrate(alias, "duly"))


def _is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _apps() -> list[DjangoDuly]:
    found = [*(backend.app for backend in backends()), scheduler_app()]
    return [app for app in found if isinstance(app, DjangoDuly)]
