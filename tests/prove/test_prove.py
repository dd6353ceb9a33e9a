"""The scenarios of `make prove` at a twentieth of their size, on both kinds of store.

The constants below name all reductions. Processes are forked here, and started in `make prove`.
"""

import json
import os
from pathlib import Path

import pytest

from duly_prove.evidence import SCENARIOS, gather
from duly_prove.process_starter import ProcessStarter
from duly_prove.trial import Trial

SCALE = 1 / 20
SCALES = {"boundaries": 1 / 100, "restarts": 1 / 40, "simulation": 1 / 100}
"""tests/worker/test_every_statement.py does a twentieth of the sweep over all statements. Restarts
reach a twentieth over both kinds of store. Each kind simulates one week instead of five."""

RATE = 20.0
"""Runs per second. Only runs with faults count; more runs would only use the processors."""

STRIKELESS = {"sleepers"}
"""This scenario measures the cost of sleeping and injects no faults."""


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
