"""Finds the commands that other distributions add through the entry points `duly.commands`.

An entry point names a function that returns the commands by name. The entry points are read only
for help and for a name that is not a command of duly, so that no other command waits for that.
"""

from functools import cache
from typing import NamedTuple

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
            added = {str(name): AddedCommand(*each) for name, each in entry.load()().items()}
        except Exception as error:  # noqa: BLE001 - a broken distribution must not break `duly`
            reason = f"{type(error).__name__}: {error}"
            problems.append(f"The commands of {entry.value} cannot be used ({reason}).")
        else:
            found |= added
    return AddedCommands(found, tuple(problems))
