"""What the processes that a command starts have to know of it: settings, and where modules lie."""

import os
import sys
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError

_OF_EVERY_COMMAND = frozenset({"--settings", "--pythonpath"})
"""Django has read these before it asks a command."""


def tell_children(pythonpath: str | None = None) -> None:
    """Let new processes find the project as this one did, from whichever folder it was started."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", settings.SETTINGS_MODULE)
    # The folder of manage.py is where Python looks first, and in a new process it would not.
    script = str(Path(sys.argv[0]).resolve().parent)
    given = [] if pythonpath is None else [str(Path(pythonpath).resolve())]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [*given, *([script] if script in sys.path else []), *filter(None, known)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))


def split(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without the options of every command, and those."""
    rest: list[str] = []
    found: dict[str, str] = {}
    left = iter(arguments)
    for argument in left:
        name, _, value = argument.partition("=")
        if name in _OF_EVERY_COMMAND:
            found[name] = value if "=" in argument else next(left, "")
        else:
            rest.append(argument)
    return rest, found


def named_backend(arguments: list[str]) -> tuple[str, list[str]]:
    """Return the alias that `--backend` names in front of a command, and what is behind that."""
    if arguments[:1] != ["--backend"]:
        return "default", arguments
    if len(arguments) == 1:
        raise CommandError("--backend needs the alias of a backend in TASKS behind it")
    return arguments[1], arguments[2:]
