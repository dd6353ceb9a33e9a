"""An exception from outside strikes a write before the first statement of its transaction."""

from typing import Any

import pytest

from duly.store.ops.recovery import HandBackUnknown
from duly.store.postgres import write_paths
from tests.store.conformance.verbs import OTHER_WORKER, WORKER, claimed_ids, enqueue_many, register


def test_claims_are_committed_after_an_interrupted_hand_back(store, connection, monkeypatch):
    register(store, OTHER_WORKER)
    enqueue_many(store, 2)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(write_paths, "carry_out", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.do(HandBackUnknown(WORKER, frozenset()))
    claimed = claimed_ids(store, 2, worker=OTHER_WORKER)

    running = connection.execute("SELECT id::text FROM duly_runs WHERE state = 'running'")
    assert sorted(claimed) == sorted(run_id for (run_id,) in running)
