"""The command line of duly. A command's module is imported only when the command is used."""

import re
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from typing import Any

import click

from duly.cli.failures import INTERRUPTED, report, report_usage, status_of
from duly.cli.session import shared_options
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
    "demo": "Watch duly at work.",
}
"""Each is `command` in the module of its name.

The help is repeated here so that showing it imports no command.
"""

_WITH_PASSWORD = re.compile(
    r"\b(postgres|postgresql|rediss?)://([^/@\s]*:[^/@\s]+@|\S*[?&]password=)"
)


class Commands(click.Group):
    """The root command. It imports commands late, and prints every duly error in one place."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's
        return [name for name in _COMMANDS if find_spec(_module_of(name)) is not None]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        found: click.Command = import_module(_module_of(cmd_name)).command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        known = self.list_commands(ctx)
        meant = None if args[0] in known else nearest(args[0], known)
        if meant is not None:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _COMMANDS[name]) for name in self.list_commands(ctx)])

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
    if is_asked and any(map(_WITH_PASSWORD.search, arguments)):
        click.echo(
            "Warning: every user of this machine can read the password in the list of processes; "
            "set the address in DULY_URL instead, or put the password in PGPASSFILE",
            err=True,
        )


def _module_of(name: str) -> str:
    return f"{__name__}.{name.replace('-', '_')}"


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
