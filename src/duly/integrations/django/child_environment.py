"""Passes settings, import paths and test databases to the processes that a command starts."""

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
"""Django has read these options before it calls a command."""
_TEST_DATABASES = "DULY_TEST_DJANGO_DATABASES"
"""The names of the test databases by alias. The settings name the production databases."""


@contextmanager
def export_environment(pythonpath: str | None = None) -> Iterator[None]:
    """Let processes started in the block use the same project as this process.

    They find the project regardless of the current folder, and use the databases of a running test.
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
    # Python searches the folder of manage.py first. A new process would not search it.
    script = str(Path(sys.argv[0]).resolve().parent)
    given = [] if pythonpath is None else [str(Path(pythonpath).resolve())]
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    places = [*given, *([script] if script in sys.path else []), *filter(None, known)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(places))


def split(arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arguments without the options of every command, and those options separately."""
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
    """Return the alias given as `--backend` before a command, and the arguments after it."""
    if arguments[:1] != ["--backend"]:
        return "default", arguments
    if len(arguments) == 1:
        raise CommandError("--backend needs the alias of a backend in TASKS as its value")
    return arguments[1], arguments[2:]
