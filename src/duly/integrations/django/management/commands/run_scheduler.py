"""`manage.py run_scheduler`: fires scheduled tasks that backends other than duly's carry."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from duly.cli import commands
from duly.integrations.django.child_environment import export_environment

_APP = "duly.integrations.django.worker:scheduler_app"


class Command(BaseCommand):
    """Runs until it is stopped; any number of them may run at once."""

    help = "Fire scheduled tasks, once for each due instant, even with several schedulers."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take what users of django-periodic-tasks know."""
        parser.add_argument(
            "--interval", type=int, help="Not needed: schedules fire when they are due."
        )

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Run a worker that has nothing to do but to fire and to hand over.

        A program that calls this command, such as a test, has the scheduler run in its own thread.
        """
        from duly.integrations.django.periodic import PeriodicTaskScheduler, get_scheduler_class  # noqa: PLC0415 - reads settings

        scheduler = get_scheduler_class()
        if scheduler is not PeriodicTaskScheduler or not self._called_from_command_line:
            scheduler(options["interval"] or 15).run()
            return
        with export_environment(options["pythonpath"]):
            commands.main(["worker", _APP], prog_name="manage.py run_scheduler")
