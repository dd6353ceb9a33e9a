"""duly inside Django: `INSTALLED_APPS += ["duly.integrations.django"]`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duly.integrations.django.backend import DulyBackend
    from duly.integrations.django.executions import exactly_once
    from duly.integrations.django.options import duly_options
    from duly.integrations.django.scheduled import scheduled_task

__all__ = ["DulyBackend", "duly_options", "exactly_once", "scheduled_task"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - one of the above
    # Django imports this package before its settings may be read.
    if name == "DulyBackend":
        from duly.integrations.django.backend import DulyBackend  # noqa: PLC0415

        return DulyBackend
    if name == "duly_options":
        from duly.integrations.django.options import duly_options  # noqa: PLC0415

        return duly_options
    if name == "exactly_once":
        from duly.integrations.django.executions import exactly_once  # noqa: PLC0415

        return exactly_once
    if name == "scheduled_task":
        from duly.integrations.django.scheduled import scheduled_task  # noqa: PLC0415

        return scheduled_task
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
