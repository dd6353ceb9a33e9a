"""The pauses of callers that poll."""

import pytest

from duly import clock
from duly.clock import FIRST_PAUSE, longer_pause


@pytest.mark.parametrize(
    ("random", "pause", "left", "following"),
    [
        (1.0, 0.1, 60, 0.2),
        (0.0, 0.1, 60, 0.1),
        (1.0, 0.4, 60, 0.5),
        (0.0, 0.0, 60, FIRST_PAUSE),
        (1.0, 0.4, 0.003, 0.003),
    ],
)
def test_a_pause_grows_up_to_its_limit_and_ends_in_time(
    monkeypatch, random, pause, left, following
):
    monkeypatch.setattr(clock, "jitter", lambda: random)

    assert longer_pause(pause, longest=0.5, left=left) == pytest.approx(following)
