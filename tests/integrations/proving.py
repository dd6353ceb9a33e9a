"""How many to kill, how long to go on, and where to keep what came of it.

`make test` kills a twentieth of what `make prove` does, which sets these variables.
"""

import json
import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KILLS_VARIABLE, FOLDER_VARIABLE = "DULY_PROVE_KILLS", "DULY_TEST_EVIDENCE"
SCALE = float(os.environ.get("DULY_TEST_SCALE", "1"))
KILLS = int(os.environ.get(KILLS_VARIABLE, "5"))
WHERE = pytest.mark.stores("sqlite", "postgres" if KILLS_VARIABLE in os.environ else "sqlite")
"""In `make test` the guard's own suite shows what depends on the store; one is enough here."""
SECONDS = 120 + 10 * KILLS
"""Long enough for that many, on a busy machine."""


def keep(scenario: str, where: str, document: dict[str, Any], *libraries: str) -> None:
    """Write down what came of a scenario, if somebody asked for that."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder is None:
        return
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
