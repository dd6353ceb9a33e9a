"""The Django application."""

from contextlib import suppress

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.signals import request_started
from django.db.backends.signals import connection_created
from django.db.models.signals import pre_migrate


class DulyConfig(AppConfig):
    """Provides the tables and the commands."""

    name = "duly.integrations.django"
    label = "duly"
    verbose_name = "Tasks"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the checks and signal receivers, and discover the tasks."""
        from duly.integrations.django.checks import check_apps, check_tasks, check_workers  # noqa: PLC0415 - reads settings
        from duly.integrations.django.task_modules import DEFINITION_ERRORS, discover_tasks  # noqa: PLC0415 - as above

        if getattr(settings, "PERIODIC_TASKS_AUTOSTART", False):
            from duly.integrations.django.periodic import autostart  # noqa: PLC0415 - as above

            request_started.connect(autostart)
        from duly.integrations.django.app import close_own_connections  # noqa: PLC0415 - as above
        from duly.integrations.django.engine_migrations import make_tables_without_migrations  # noqa: PLC0415 - as above

        pre_migrate.connect(make_tables_without_migrations, sender=self)
        connection_created.connect(close_own_connections)
        checks.register(check_apps, checks.Tags.compatibility)
        checks.register(check_tasks, checks.Tags.compatibility)
        # `migrate`, which creates the tables, and `test` must not run this check.
        checks.register(check_workers, checks.Tags.database, deploy=True)
        # The checks report the error with its remedy. Code that needs the tasks raises it again.
        with suppress(*DEFINITION_ERRORS):
            discover_tasks()
