"""Write the oldest versions that pyproject.toml allows, as requirements for pip."""

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
_REQUIREMENT = re.compile(r"([\w.-]+)(\[[\w,-]+\])?>=([\w.]+)[^;]*(;.*)?")
_SAME_VERSION = {"opentelemetry-sdk"}
"""Tools for development that work only with an API of their own version."""


def floors_of(project: dict[str, Any]) -> dict[str, str]:
    """Return a requirement for the oldest version of each dependency, by its name.

    Tests need some of them with extras, which the extra `dev` names.
    """
    extras = dict(project["optional-dependencies"])
    dev = extras.pop("dev")
    found = _floors(
        [*project["dependencies"], *(each for given in extras.values() for each in given)]
    )
    for_tests = _floors(each for each in dev if not each.startswith("duly"))
    wanted = found.keys() | _SAME_VERSION
    return found | {name: text for name, text in for_tests.items() if name in wanted}


def _floors(requirements: Iterable[str]) -> dict[str, str]:
    found = {}
    for requirement in requirements:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None:
            raise SystemExit(f"{requirement!r} names no oldest version; write name>=version")
        name, extras, floor, marker = match.groups(default="")
        found[name] = f"{name}{extras}=={floor}{marker}"
    return found


if __name__ == "__main__":
    project = tomllib.loads(PROJECT.read_text())["project"]
    sys.stdout.write("".join(f"{floor}\n" for floor in floors_of(project).values()))
