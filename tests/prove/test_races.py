"""The judge of races for a lock can fail."""

import pytest

from duly.prove.racing import Try
from duly.prove.scenarios.locks import Race, broken_races


def race(number: int, *fences: int, heard: bool = False) -> Race:
    """Return a race of two who lost and of winners with these fences."""
    tries = [Try(pid, is_ours=False, owner="", fence=1) for pid in (1, 2)]
    tries += [Try(pid, is_ours=True, owner="", fence=fence) for pid, fence in enumerate(fences, 3)]
    return Race(number, tries, heard)


def test_one_winner_each_and_fences_that_grow_are_sound():
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
def test_a_broken_race_is_told(broken: Race, told: str):
    (found,) = broken_races([race(0, 5), broken])

    assert found.startswith(told)
