"""The scenarios of `make prove` at a twentieth of their size on each of the two kinds of store.

What is smaller here is named below. Processes are forked here, and started anew in `make prove`.
"""

import json
import os
from pathlib import Path

import pytest

from duly.prove.evidence import SCENARIOS, gather
from duly.prove.process_starter import ProcessStarter
from duly.prove.trial import Trial

SCALE = 1 / 20
SCALES = {"boundaries": 1 / 100, "restarts": 1 / 40, "simulation": 1 / 100}
"""Of the sweep over all statements, tests/worker/test_every_statement.py does a twentieth. Restarts
make up a twentieth over both kinds of store. A week is simulated on each instead of five."""

RATE = 20.0
"""Runs per second. What counts is what is struck; runs beyond that only need the processors."""

STRIKELESS = {"sleepers"}
"""It counts what sleeping costs, and strikes nobody."""


@pytest.mark.process
@pytest.mark.timeout(240)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_invariants_survive(
    scenario: str, store_url: str, tmp_path: Path, starter: ProcessStarter
):
    seed = int.from_bytes(os.urandom(3))

    with Trial(store_url, tmp_path, seed=seed, rate=RATE, starter=starter) as trial:
        found = gather(trial, scenario, SCALES.get(scenario, SCALE))

    assert found.holds, json.dumps(found.document, indent=1)
    assert found.document["strikes"]["made"] > 0 or scenario in STRIKELESS
