"""duly inside Django: `INSTALLED_APPS += ["duly.integrations.django"]`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.integrations.django.backend import DulyBackend
    from duly.integrations.django.code_schedules import (
        ScheduleEntry,
        ScheduleRegistry,
        schedule_registry,
        scheduled_task,
    )
    from duly.integrations.django.executions import exactly_once
    from duly.integrations.django.options import duly_options

__all__ = [
    "DulyBackend",
    "ScheduleEntry",
    "ScheduleRegistry",
    "duly_options",
    "exactly_once",
    "schedule_registry",
    "scheduled_task",
]
_MODULES = {
    "DulyBackend": "backend",
    "duly_options": "options",
    "exactly_once": "executions",
    **dict.fromkeys(
        ("ScheduleEntry", "ScheduleRegistry", "schedule_registry", "scheduled_task"),
        "code_schedules",
    ),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401 - one of the above
    # Django imports this package before its settings may be read.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
