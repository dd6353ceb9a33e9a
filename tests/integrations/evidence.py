"""The number of kills, the duration, and the folder for the reports.

`make test` kills a twentieth as many processes as `make prove`, which sets these variables.
"""

import json
import os
import platform
import subprocess
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol

import pytest

ROOT = Path(__file__).parents[2]
KILLS_VARIABLE, FOLDER_VARIABLE = "DULY_PROVE_KILLS", "DULY_TEST_EVIDENCE"
SCALE = float(os.environ.get("DULY_TEST_SCALE", "1"))
KILLS = int(os.environ.get(KILLS_VARIABLE, "5"))
WHERE = pytest.mark.stores("sqlite", "postgres" if KILLS_VARIABLE in os.environ else "sqlite")
"""In `make test` the guard's own suite tests every store, so one store is enough here."""
SECONDS = 120 + 10 * KILLS
"""Long enough for this many kills on a busy machine."""


class Told(Protocol):
    """The outcome of a scenario: a dataclass with the defects found."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def broken(self) -> list[str]:
        """Return one sentence for each defect."""


def keep(scenario: str, where: str, told: Told | dict[str, Any], *libraries: str) -> None:
    """Write the outcome of a scenario to a file, if the environment names a folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
    document = told if isinstance(told, dict) else asdict(told) | {"broken": told.broken}
    asked = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(
        asked,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    whole = {
        "scenario": scenario,
        "ledger": where,
        "verdict": "broken" if document["broken"] else "holds",
        **document,
        "commit": commit.stdout.strip(),
        "versions": {
            "python": platform.python_version(),
            "platform": platform.platform(),
            **{library: version(library) for library in libraries},
        },
    }
    place = Path(folder) / f"{scenario}-{where}.json"
    place.write_text(json.dumps(whole, indent=2) + "\n")
