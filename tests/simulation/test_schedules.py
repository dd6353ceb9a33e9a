"""Eight schedulers with skewed clocks that die now and then miss no instant and invent none."""

import os

import pytest

from tests.simulation.schedulers import POINTS, World

DAYS = float(os.environ.get("DULY_SIMULATED_DAYS", "36"))
"""A twentieth of two years; `make prove` asks for all of it."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, 2])
def test_no_instant_is_missed_and_none_is_extra(tmp_path, seed):
    world = World(tmp_path / "duly.db", seed)

    world.live(DAYS / 2)

    assert all(world.deaths[point] > 0 for point in POINTS)
    assert world.missed_and_extra() == ([], [])
    runs, firings = world.runs_and_firings()
    assert runs == firings > 0
    world.close()
