"""The expectations of a trial do not depend on earlier firings of its schedules."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from duly.store.due_schedules import fire_due
from duly_prove import workload
from duly_prove.trial import Trial


@pytest.mark.stores("sqlite-wal")
def test_a_trial_also_expects_an_instant_that_has_already_fired(store_url: str, tmp_path: Path):
    with Trial(store_url, tmp_path, seed=1) as trial:
        instant = datetime.now(UTC)
        trial.app.schedules.add("quick", workload.order, at=instant, args=(1,))
        fire_due(trial.app.store, 10)

        trial.expect("quick")

        assert trial.app.schedules.next("quick") == []
        assert [due[:2] for due in trial.due] == [("quick", 1)]
        assert [due.instant for due in trial.due] == [f.instant for f in trial.database.firings()]
