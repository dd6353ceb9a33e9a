"""Runs that sleep cost nothing but their rows."""

import pytest

from duly_prove.crash_tasks import app
from duly_prove.scenarios.sleepers import SleepMeasurement, broken_sleep, first_of, let_sleep

RUNS = 300
FIRST = first_of(RUNS)
ASLEEP = {("queued", 1): RUNS, ("succeeded", 1): FIRST}
AWAKE = {("succeeded", 1): RUNS + FIRST}


def test_sleeping_runs_cost_no_thread_and_no_attempt(store_url: str):
    app.use_url(store_url)

    slept = let_sleep(RUNS)
    app.close()

    assert broken_sleep(slept, RUNS) == [], slept


@pytest.mark.parametrize(
    ("slept", "told"),
    [
        (SleepMeasurement(FIRST, 18, 19, ASLEEP, AWAKE, 1, 1), "19 threads"),
        (SleepMeasurement(FIRST, 18, 18, {**ASLEEP, ("running", 1): 1}, AWAKE, 1, 1), "while all"),
        (
            SleepMeasurement(FIRST, 18, 18, ASLEEP, {("succeeded", 2): RUNS + FIRST}, 1, 1),
            "afterwards",
        ),
    ],
)
def test_what_sleeping_must_not_cost_is_told(slept: SleepMeasurement, told: str):
    (found,) = broken_sleep(slept, RUNS)

    assert found.startswith(told)
