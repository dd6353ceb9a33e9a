"""The options of every command: the application, the store, and the output format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from duly.core.addresses import without_driver
from duly.settings import load_settings

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True)
class CommandSession:
    """The shared options, from any position on the command line."""

    app: str | None = None
    url: str | None = None
    as_json: bool = False
    quiet: bool = False
    verbose: bool = False

    @property
    def app_reference(self) -> str | None:
        """The application as given, or from the settings."""
        return self.app or load_settings().app


pass_session = click.make_pass_decorator(CommandSession, ensure=True)


_STORE = "The store (DULY_URL); sqlite:///duly.db by default."


def shared_options(function: F, *, url: str = _STORE) -> F:
    """Add the options of every command. `url` is the help text of `--url`."""
    quiet = _flag("Print only the requested data.", "-q", "--quiet", "quiet")
    return worker_options(quiet(function), url=url)


def worker_options(function: F, *, url: str = _STORE) -> F:
    """Add the shared options except `-q`, which selects queues in `duly worker`."""
    options = (
        _option("The application, as module:attribute (DULY_APP).", "--app", "app"),
        _option(url, "--url", "url"),
        _flag("Print results and errors as JSON.", "--json", "as_json"),
        _flag("Show more details of errors.", "-v", "--verbose", "verbose"),
    )
    for option in reversed(options):
        function = option(function)
    return function


def _option(text: str, *names: str) -> Callable[[F], F]:
    return click.option(*names, metavar="TEXT", help=text, expose_value=False, callback=_note)


def _flag(text: str, *names: str) -> Callable[[F], F]:
    return click.option(*names, is_flag=True, help=text, expose_value=False, callback=_note)


def _note(context: click.Context, parameter: click.Parameter, value: object) -> None:
    # An option omitted here may have been given earlier on the command line, so keep it.
    if isinstance(value, str) and parameter.name == "url":
        value = without_driver(value)
    if value and parameter.name:
        setattr(context.ensure_object(CommandSession), parameter.name, value)
