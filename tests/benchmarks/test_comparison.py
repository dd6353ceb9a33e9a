"""The comparison of two commits: its verdict, and a run of every workload."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.comparison.__main__ import AMOUNTS
from benchmarks.comparison.alternate import compare, sqlite
from benchmarks.comparison.builds import Build
from benchmarks.comparison.ratios import Comparison, table
from benchmarks.processes import ROOT

SMALL = 10


def _noisy(speed: float, *, seed: int) -> list[float]:
    draw = random.Random(seed)  # noqa: S311 - noise, not a secret
    return [speed * draw.uniform(0.9, 1.1) for _ in range(12)]


def test_a_build_that_is_a_fifth_slower_fails_the_comparison() -> None:
    comparison = Comparison("drain", "sqlite", base=_noisy(100, seed=1), head=_noisy(80, seed=2))

    low, high = comparison.interval()

    assert low <= comparison.ratio <= high < 0.95
    assert comparison.is_slower
    assert "SLOWER" in table([comparison])


def test_a_build_of_the_same_speed_passes_the_comparison() -> None:
    comparison = Comparison("drain", "sqlite", base=_noisy(100, seed=1), head=_noisy(100, seed=2))

    low, high = comparison.interval()

    assert low < 1 < high
    assert not comparison.is_slower
    assert "SLOWER" not in table([comparison])


def test_a_median_below_the_bound_passes_while_its_interval_reaches_above_it() -> None:
    comparison = Comparison("drain", "sqlite", base=[100.0] * 12, head=[94.0] * 7 + [99.0] * 5)

    assert comparison.ratio < 0.95
    assert not comparison.is_slower


def test_fewer_than_twelve_rounds_are_refused() -> None:
    command = [sys.executable, "-m", "benchmarks.comparison", "--base", "HEAD", "--rounds", "11"]

    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)

    assert done.returncode == 2
    assert "fewer than 12 rounds" in done.stderr


@pytest.mark.process
@pytest.mark.timeout(180)
@pytest.mark.parametrize("workload", AMOUNTS)
def test_a_workload_measures_both_builds_in_every_round(workload: str) -> None:
    installed = Build("the installed one", Path(sys.executable))
    amount = AMOUNTS["aenqueue"] // 100 if workload == "aenqueue" else SMALL

    comparison = compare(
        installed, installed, workload=workload, amount=amount, store=sqlite(), rounds=1
    )

    assert len(comparison.ratios) == 1
    assert comparison.ratio > 0
