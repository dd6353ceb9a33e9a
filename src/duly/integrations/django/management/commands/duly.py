"""`manage.py duly …`: the command line of duly, for the tasks of this project."""

import os
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from duly.cli import commands
from duly.integrations.django.children import named_backend, split, tell_children

_WORKER = "duly.integrations.django.worker"


class Command(BaseCommand):
    """Hands its arguments to `duly`, which is told where the application is."""

    help = (
        "Run tasks, look at them and act on them: `manage.py duly worker`, `duly dev`, which "
        "begins anew when the code changes, `duly status`, `duly runs list`, …"
    )
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Take everything behind the name of the command as it is."""
        arguments, options = split(argv[2:])
        alias, arguments = named_backend(arguments)
        if arguments == ["dev"]:
            from duly.integrations.django import dev  # noqa: PLC0415 - reads settings

            dev.run()
            return
        if arguments == ["status"]:
            from duly.integrations.django.status import lines  # noqa: PLC0415 - reads settings

            self.stdout.write("\n".join(lines()))
            return
        tell_children(options.get("--pythonpath"))
        os.environ["DULY_APP"] = f"{_WORKER}:{alias}"
        commands.main(arguments, prog_name="manage.py duly")

    def add_arguments(self, parser: CommandParser) -> None:
        """Name what `call_command` takes."""
        parser.add_argument("arguments", nargs="*")

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Run a command from inside a program."""
        self.run_from_argv(["manage.py", "duly", *options["arguments"]])
