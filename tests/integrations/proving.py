"""How many to kill, how long to go on, and where to keep what came of it.

`make test` kills a twentieth of what `make prove` does, which sets these variables.
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
"""In `make test` the guard's own suite shows what depends on the store; one is enough here."""
SECONDS = 120 + 10 * KILLS
"""Long enough for that many, on a busy machine."""


class Told(Protocol):
    """What came of a scenario: a dataclass, and what should not have been."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def broken(self) -> list[str]:
        """One sentence each."""


def keep(scenario: str, where: str, told: Told | dict[str, Any], *libraries: str) -> None:
    """Write down what came of a scenario, if somebody asked for that."""
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
