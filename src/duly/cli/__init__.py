"""The command line of duly. A command's module is imported only when the command is used."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from io import TextIOWrapper
from typing import Any

import click

from duly.cli.added_commands import added_commands
from duly.cli.failures import INTERRUPTED, report, report_usage, status_of
from duly.cli.session import shared_options
from duly.core.addresses import has_password
from duly.core.escape import clean
from duly.core.suggestions import nearest
from duly.errors import DulyError
from duly.version import VERSION

_COMMANDS = {
    "worker": "Run tasks until stopped.",
    "dev": "Run tasks and the dashboard; restart when the code changes.",
    "enqueue": "Enqueue one run of a task.",
    "runs": "List, follow, show, wait for, cancel and retry runs.",
    "why": "Show why a run is not running.",
    "dead": "List, group, show, export, retry and discard dead letters.",
    "schedules": "List, show, pause and run schedules.",
    "queues": "List, pause, resume, limit and drain queues.",
    "workers": "List workers.",
    "locks": "List held locks.",
    "dashboard": "Serve the dashboard.",
    "deploy-mark": "Mark a deployment, for charts.",
    "db": "Set up, upgrade, check, prune and back up the database.",
    "audit": "Check that no run was lost or duplicated.",
    "restore": "Interrupt runs that may have run since a backup was made.",
    "move": "Copy everything from SQLite to PostgreSQL.",
    "config": "Show every setting and where it came from.",
    "health": "Check that runs make progress, for probes.",
    "doctor": "Find problems and show how to fix them.",
}
"""Each is `command` in the module of its name.

The help is repeated here so that showing it imports no command.
"""

_OF_DULY_PROVE = ("demo", "prove")
_INSTALL_PROVE = (
    "{!r} is a command of the package duly-prove; "
    "install it in a checkout of duly with: pip install ./prove"
)

_ADDRESS = re.compile(r"\b(?:postgres(?:ql)?(?:\+\w+)?|rediss?)://\S*")


class Commands(click.Group):
    """The root command. It imports commands late, and prints every duly error in one place."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return list(_summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's
        if cmd_name in _COMMANDS:
            module = f"{__name__}.{cmd_name.replace('-', '_')}"
        elif cmd_name in (added := added_commands().by_name):
            module = added[cmd_name].module
        else:
            return None
        found: click.Command = import_module(module).command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        problem = None if args[0] in _COMMANDS else _problem_with(args[0])
        if problem is not None:
            ctx.fail(problem)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's
        with formatter.section("Commands"):
            formatter.write_dl(list(_summaries().items()))
        for problem in added_commands().problems:
            formatter.write_paragraph()
            formatter.write_text(clean(problem))

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,  # noqa: ANN401 - click's
    ) -> click.Context:
        given = tuple(args)
        _warn_of_passwords(given)
        make = super().make_context
        context: click.Context = _report_errors(
            given, lambda: make(info_name, args, parent, **extra)
        )
        context.meta[__name__] = given
        return context

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - click's
        invoke = super().invoke
        return _report_errors(ctx.meta[__name__], lambda: invoke(ctx))


def _warn_of_passwords(arguments: tuple[str, ...]) -> None:
    """Warn that other users can read a password in an address on the command line."""
    is_asked = not {"--json", "-q", "--quiet"}.intersection(arguments)
    addresses = [found for each in arguments for found in _ADDRESS.findall(each)]
    if is_asked and any(map(has_password, addresses)):
        click.echo(
            "Warning: every user of this machine can read the password in the list of processes; "
            "set the address in DULY_URL instead, or put the password in PGPASSFILE",
            err=True,
        )


def _summaries() -> dict[str, str]:
    """Return the summary of every command. A command of duly replaces an added one of its name."""
    added = {name: command.summary for name, command in added_commands().by_name.items()}
    return _COMMANDS | added | _COMMANDS


def _problem_with(name: str) -> str | None:
    """Return why a name is not a command and what to do, if that is known."""
    added = added_commands()
    if name in added.by_name:
        return None
    if name in _OF_DULY_PROVE:
        return " ".join([_INSTALL_PROVE.format(name), *map(clean, added.problems)])
    meant = nearest(name, _summaries())
    return None if meant is None else f"No such command {name!r}. Did you mean {meant!r}?"


def _report_errors(arguments: tuple[str, ...], act: Callable[[], Any]) -> Any:  # noqa: ANN401 - click's
    """Call a function. Convert an error to a message on stderr and an exit status."""
    # An option that cannot be parsed leaves no context with the options.
    as_json = "--json" in arguments
    verbose = "-v" in arguments or "--verbose" in arguments
    try:
        return act()
    except DulyError as error:
        report(error, as_json=as_json, verbose=verbose)
        raise click.exceptions.Exit(status_of(error)) from error
    except click.UsageError as error:
        if not as_json:
            raise
        report_usage(error)
        raise click.exceptions.Exit(error.exit_code) from error
    except KeyboardInterrupt:
        raise click.exceptions.Exit(INTERRUPTED) from None


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, message="duly %(version)s")
@shared_options
def commands() -> None:
    """Run Python functions later, on time, and once, on the database you already have.

    Exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 timeout, 75 database unavailable.
    """


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # Characters that a terminal's encoding lacks are escaped instead of raising an error.
            stream.reconfigure(errors="backslashreplace")
    commands()
