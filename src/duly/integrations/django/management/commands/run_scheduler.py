"""`manage.py run_scheduler`: fires scheduled tasks of backends other than duly's."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from duly.cli import commands
from duly.integrations.django.child_environment import export_environment

_APP = "duly.integrations.django.worker:scheduler_app"


class Command(BaseCommand):
    """Runs until it is stopped. Several schedulers may run at once."""

    help = "Fire scheduled tasks, once for each due instant, even with several schedulers."

    def add_arguments(self, parser: CommandParser) -> None:
        """Accept the options of django-periodic-tasks."""
        parser.add_argument(
            "--interval", type=int, help="Not needed: schedules fire when they are due."
        )

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Run a worker that only fires schedules and sends runs to other backends.

        If a program such as a test calls this command, the scheduler runs in the calling thread.
        """
        from duly.integrations.django.periodic import PeriodicTaskScheduler, get_scheduler_class  # noqa: PLC0415 - reads settings

        scheduler = get_scheduler_class()
        if scheduler is not PeriodicTaskScheduler or not self._called_from_command_line:
            scheduler(options["interval"] or 15).run()
            return
        with export_environment(options["pythonpath"]):
            commands.main(["worker", _APP], prog_name="manage.py run_scheduler")
