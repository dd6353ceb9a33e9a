"""Finds the commands that other distributions add through the entry points `duly.commands`.

An entry point names a function that returns the commands by name. The entry points are read only
for help and for a name that is not a command of duly, so that no other command waits for that.
"""

from functools import cache
from typing import Any, NamedTuple

ENTRY_POINTS = "duly.commands"


class AddedCommand(NamedTuple):
    """A command of another distribution."""

    summary: str
    """Its line in the help, so that showing the help does not import the command."""
    module: str
    """The module whose `command` it is. The module is imported when the command is used."""


class AddedCommands(NamedTuple):
    """The commands of all other distributions."""

    by_name: dict[str, AddedCommand]
    problems: tuple[str, ...]
    """A sentence for each entry point that failed."""


@cache
def added_commands() -> AddedCommands:
    """Return the added commands. An entry point that fails adds none, and is reported."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - other commands do not need it

    found: dict[str, AddedCommand] = {}
    problems = []
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            added = _checked(entry.load()())
        except (Exception, SystemExit) as error:  # noqa: BLE001 - it must not break `duly`
            reason = f"{type(error).__name__}: {error}"
            problems.append(f"The commands of {entry.value} cannot be used ({reason}).")
        else:
            found |= added
    return AddedCommands(found, tuple(problems))


def _checked(added: dict[Any, Any]) -> dict[str, AddedCommand]:
    """Return the commands, or raise TypeError for one that the help cannot show in its line."""
    found = {name: AddedCommand(*each) for name, each in added.items()}
    for name, command in found.items():
        if not all(isinstance(each, str) and each.isprintable() for each in (name, *command)):
            raise TypeError(
                f"{name!r} has {tuple(command)!r}, not a summary of one line and a module"
            )
    return found
