"""A trial expects every firing, and shows what did not happen in time."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from duly.store.due_schedules import fire_due
from duly.store.ops.upkeep import RegisterWorker
from duly_prove import workload
from duly_prove.checker import check
from duly_prove.trial import Trial

NO_PID = 2**22 + 1
"""Above the largest pid of Linux and macOS."""


@pytest.mark.stores("sqlite-wal")
def test_a_trial_also_expects_an_instant_that_has_already_fired(store_url: str, tmp_path: Path):
    with Trial(store_url, tmp_path, seed=1) as trial:
        instant = datetime.now(UTC)
        trial.app.schedules.add("quick", workload.order, at=instant, args=(1,))
        fire_due(trial.app.store, 10)

        trial.expect_firings("quick")

        assert trial.app.schedules.next("quick") == []
        assert [due[:2] for due in trial.due] == [("quick", 1)]
        assert [due.instant for due in trial.due] == [f.instant for f in trial.database.firings()]


@pytest.mark.stores("sqlite-wal")
def test_runs_that_do_not_end_in_time_are_a_violation(store_url: str, tmp_path: Path):
    with Trial(store_url, tmp_path, seed=1) as trial:
        trial.feeder.enqueue(2)

        trial.drain(0.25)

        assert trial.violations == ["I13 progress: 2 runs had not ended after 0.25 s"]


@pytest.mark.stores("sqlite-wal")
def test_the_checker_names_the_time_that_runs_had_to_end(store_url: str, tmp_path: Path):
    with Trial(store_url, tmp_path, seed=1) as trial:
        trial.feeder.enqueue(1)

        trial.drain(0.25)

        (violation,) = check(trial.history()).violations
        assert violation.invariant == "I13 progress"
        assert violation.what == "still queued after a drain of 0.25 s"


@pytest.mark.stores("sqlite-wal")
def test_a_dead_worker_that_stays_live_for_too_long_is_a_violation(store_url: str, tmp_path: Path):
    with Trial(store_url, tmp_path, seed=1) as trial:
        trial.app.store.do(RegisterWorker("gone", "host", NO_PID, 15.0, "[]", "[]"))

        trial.wait_until_recovered(0.25)

        assert trial.violations == ["I5 one holder: worker gone was still live after 0.25 s"]
