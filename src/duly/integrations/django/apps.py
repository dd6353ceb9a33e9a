"""The Django application."""

from django.apps import AppConfig
from django.core import checks


class DulyConfig(AppConfig):
    """Has the tables and the commands."""

    name = "duly.integrations.django"
    label = "duly"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks."""
        from duly.integrations.django.checks import (  # noqa: PLC0415 - reads settings
            check_apps,
            check_workers,
        )

        checks.register(check_apps, checks.Tags.compatibility)
        checks.register(check_workers, checks.Tags.database)
