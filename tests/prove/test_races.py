"""The checks of races for locks and for places under limits can fail."""

from pathlib import Path

import pytest

from duly_prove.claimer_process import CAPACITY, LANE, QUEUE_LIMIT
from duly_prove.process_starter import ProcessStarter
from duly_prove.racer_process import RacerResult
from duly_prove.scenarios.limits import exceeded, limits
from duly_prove.scenarios.locks import Race, broken_races
from duly_prove.trial import Trial


def race(number: int, *fences: int, heard: bool = False) -> Race:
    """Return a race with two losers and with winners that have these fences."""
    tries = [RacerResult(pid, is_ours=False, owner="", fence=1) for pid in (1, 2)]
    tries += [
        RacerResult(pid, is_ours=True, owner="", fence=fence) for pid, fence in enumerate(fences, 3)
    ]
    return Race(number, tries, heard)


def test_races_with_one_winner_and_growing_fences_are_sound():
    assert list(broken_races([race(0, 1), race(1, 2), race(2, 9)])) == []


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        (race(1), "race 1 had 0 winners"),
        (race(1, 6, 7), "race 1 had 2 winners"),
        (race(1, 5), "race 1 gave fence 5 after 5"),
        (race(1, 6, heard=True), "the holder before race 1"),
    ],
)
def test_a_broken_race_is_reported(broken: Race, told: str):
    (found,) = broken_races([race(0, 5), broken])

    assert found.startswith(told)


def test_an_exceeded_limit_is_reported():
    taken = [(str(number), LANE, 1) for number in range(CAPACITY)]
    left = [(str(number), LANE, -1) for number in range(CAPACITY)]
    plain = [(str(number), "thread", 1) for number in range(QUEUE_LIMIT)]

    assert list(exceeded([*taken, *left, *taken])) == []
    assert list(exceeded([*taken, *taken[:1]])) == [
        f"I17: {CAPACITY + 1} were running at once under the task's limit of {CAPACITY}"
    ]
    (told,) = exceeded([*plain, *taken[:1]])
    assert "under the queue's limit" in told


@pytest.mark.process
@pytest.mark.timeout(120)
@pytest.mark.stores("sqlite-wal")
def test_claimers_that_count_only_their_own_runs_are_caught(
    store_url: str, tmp_path: Path, starter: ProcessStarter
):
    with Trial(store_url, tmp_path, seed=1, starter=starter) as trial:
        limits(trial, 1 / 40, program="tests.prove.selfish_claimer")

    assert any(line.startswith("I17") for line in trial.violations)
