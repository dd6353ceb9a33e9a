"""Writes the page on the command line from the tree of commands."""

import inspect
from collections.abc import Iterator

import click

from duly.cli import commands
from tools.reference.tables import table

SHARED = ("--app", "--url", "--json", "--verbose", "--quiet")
"""The options of all commands. The page lists them once."""


def commands_page() -> str:
    """Return the page."""
    root = click.Context(commands, info_name="duly")
    parts = [
        "# Command line",
        _words(commands),
        "Every command accepts these options, before or after its name:",
        _options(commands, only=SHARED),
        *_walk(commands, root),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _walk(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        _, command, _ = group.resolve_command(context, [name])
        if command is None:
            raise LookupError(f"{context.command_path} lists {name}, and has none")
        inner = click.Context(command, info_name=name, parent=context)
        yield f"{'#' * (2 if context.parent is None else 3)} `{inner.command_path}`"
        yield _words(command)
        if isinstance(command, click.Group):
            yield from _walk(command, inner)
            continue
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        usage = " ".join([inner.command_path, "[OPTIONS]", *map(_metavar, arguments)])
        yield f"`{usage}`"
        yield _options(command, without=SHARED)


def _words(command: click.Command) -> str:
    return inspect.cleandoc(command.help or "").replace("\b\n", "").replace("\f", "")


def _metavar(argument: click.Argument) -> str:
    said = argument.metavar or (argument.name or "").upper()
    dots = "..." if argument.nargs == -1 else ""
    is_optional = not argument.required and not said.startswith("[")
    return (f"[{said}]" if is_optional else said) + dots


def _options(
    command: click.Command, *, only: tuple[str, ...] = (), without: tuple[str, ...] = ()
) -> str:
    rows = [
        (f"`{_names(option)}`", option.help or "")
        for option in command.params
        if isinstance(option, click.Option)
        and not set(option.opts) & set(without)
        and (not only or set(option.opts) & set(only))
    ]
    return table(("Option", "Meaning"), rows)


def _names(option: click.Option) -> str:
    said = ", ".join([*option.opts, *option.secondary_opts])
    if option.is_flag or option.count:
        return said
    kind = option.type
    if option.metavar:
        shown = option.metavar
    elif isinstance(kind, click.Choice):
        shown = "|".join(map(str, kind.choices))
    else:
        shown = kind.name.upper()
    default = "" if option.default in {None, ()} or not option.show_default else option.default
    return f"{said} {shown}" + (f" (default: {default})" if default != "" else "")
