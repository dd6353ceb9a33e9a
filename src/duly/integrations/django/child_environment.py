"""What the processes that a command starts have to know: settings, modules, and test databases."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.conf import settings
from django.core.management.base import CommandError
from django.db import connections

from duly.integrations.django.databases import is_testing

_OF_EVERY_COMMAND = frozenset({"--settings", "--pythonpath"})
"""Django has read these before it asks a command."""
_TEST_DATABASES = "DULY_TEST_DJANGO_DATABASES"
"""The names of the databases of a test, by alias: settings name those of production."""


@contextmanager
def export_environment(pythonpath: str | None = None) -> Iterator[None]:
    """Let processes that are started in the block work for the project as this one does.

    They find it from whichever folder this one was started, and use the databases of its test.
    """
    _export_paths(pythonpath)
    if is_testing():
        names = {alias: str(connections.settings[alias]["NAME"]) for alias in connections}
        os.environ[_TEST_DATABASES] = json.dumps(names)
    try:
        yield
    finally:
        os.environ.pop(_TEST_DATABASES, None)


def use_test_databases() -> None:
    """Use the databases of the test whose process started this one, if one did."""
    for alias, name in json.loads(os.environ.pop(_TEST_DATABASES, "{}")).items():
        connections.settings[alias]["NAME"] = name


def _export_paths(pythonpath: str | None) -> None:
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
        raise CommandError("--backend needs the alias of a backend in TASKS as its value")
    return arguments[1], arguments[2:]
