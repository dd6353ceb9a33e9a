"""`duly demo --schedules`: a short one comes out clean, and a count that is not can be told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from duly.prove.history import Due, FiringAtEnd
from duly.prove.schedule_demo import KINDS, Result, count

DULY = str(Path(sys.executable).with_name("duly"))
FIRST = "0:0"
"""The first schedule of the first kind, whose number is 0."""


@pytest.mark.process
@pytest.mark.timeout(120)
def test_every_instant_runs_once_while_workers_are_killed(store_url):
    done = subprocess.run(
        [DULY, "demo", "--schedules", "--seconds", "5", "--json", "--url", store_url],
        env=os.environ,
        check=False,
        capture_output=True,
        text=True,
        timeout=110,
    )

    found = json.loads(done.stdout)
    whole = found["total"]
    assert (done.returncode, found["holds"]) == (0, True), done.stdout
    assert whole["due"] == whole["fired"] == whole["ran"] > 0
    assert (whole["missed"], whole["doubled"]) == (0, 0)
    assert found["kills"] > 0


def firing(instant: int, run_id: str | None) -> FiringAtEnd:
    return FiringAtEnd(FIRST, 1, instant, instant, 1, "run", None, run_id)


@pytest.mark.parametrize(
    ("effects", "missed", "doubled"),
    [
        ([("a", 0), ("b", 0)], 0, 0),
        ([("a", 0)], 1, 0),
        ([("a", 0), ("b", 0), ("b", 0)], 0, 1),
        ([("a", 0), ("b", 0), ("nobody's", 0)], 0, 1),
        ([], 2, 0),
    ],
)
def test_it_counts_what_the_runs_did(effects, missed, doubled):
    due = [Due(FIRST, 1, 1), Due(FIRST, 1, 2)]

    rows = count(due, [firing(1, "a"), firing(2, "b")], effects)

    result = Result(rows, 0, 0, 0.0, {}, 1)
    assert (rows[0].due, rows[0].fired) == (2, 2)
    assert (rows[0].missed, rows[0].doubled) == (missed, doubled)
    assert len(rows) == len(KINDS)
    assert result.holds == (not missed and not doubled)


def test_an_instant_that_never_fired_is_missed():
    (row, *_) = count([Due(FIRST, 1, 1), Due(FIRST, 1, 2)], [firing(1, "a")], [("a", 0)])

    assert (row.due, row.fired, row.ran, row.missed, row.doubled) == (2, 1, 1, 1, 0)
