"""`manage.py duly …`: the command line of duly, for the tasks of this project."""

import os
import sys
from argparse import REMAINDER
from contextlib import redirect_stdout
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connections

from duly.cli import commands
from duly.integrations.django.child_environment import export_environment, named_backend, split
from duly.integrations.django.databases import is_testing

_WORKER = "duly.integrations.django.worker"


class Command(BaseCommand):
    """Passes its arguments to `duly`, with DULY_APP set to the project's application."""

    help = (
        "Run and manage tasks: `manage.py duly worker`, `duly dev`, which restarts when the code "
        "changes, `duly status`, `duly runs list`, `duly import-periodic-tasks`, …"
    )
    requires_system_checks: tuple[str, ...] = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass on all arguments after the name of the command."""
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
        if arguments[:1] == ["import-periodic-tasks"]:
            self._import(arguments[1:])
            return
        if is_testing() and arguments[:1] == ["worker"]:
            from duly.integrations.django.backend import backend_of  # noqa: PLC0415 - reads settings

            # The worker processes cannot detect that a database is in memory, where they cannot
            # reach it.
            _ = backend_of(alias).app.url
        os.environ["DULY_APP"] = f"{_WORKER}:{alias}"
        with export_environment(options.get("--pythonpath")):
            commands.main(arguments, prog_name="manage.py duly")

    def _import(self, arguments: list[str]) -> None:
        from duly.integrations.django.cutover import import_periodic_tasks  # noqa: PLC0415 - reads settings

        if arguments[:1] != ["--database"]:
            arguments = ["--database", "default", *arguments]
        if len(arguments) != 2 or arguments[1] not in connections:  # noqa: PLR2004 - name and value
            known = ", ".join(sorted(connections))
            raise CommandError(f"import-periodic-tasks takes only --database, one of {known}")
        report = import_periodic_tasks(arguments[1])
        self.stdout.write("\n".join(report.lines()))
        if report.not_imported:
            raise CommandError(
                "some rows could not be imported; fix the problems above and import again"
            )

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the argument that `call_command` passes."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_args: Any, **options: Any) -> None:  # noqa: ANN401 - Django's
        """Run the command for a program that uses `call_command`."""
        arguments = [argument for argument in options["arguments"] if argument != "--"]
        try:
            with redirect_stdout(options.get("stdout") or sys.stdout):
                self.run_from_argv(["manage.py", "duly", *arguments])
        except SystemExit as error:
            if error.code:
                raise CommandError(
                    f"duly {' '.join(arguments)} ended with status {error.code}"
                ) from error
