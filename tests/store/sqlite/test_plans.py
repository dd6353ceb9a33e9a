"""How SQLite goes about what it is asked: nothing that happens all the time walks the history."""

import sqlite3
from contextlib import closing

import pytest

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.sqlite import claim as claiming
from duly.store.statements import load
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import (
    LANE,
    TASK,
    TASKS,
    WORKER,
    claim,
    enqueue_many,
    register,
    succeed,
)
from tests.store.sqlite.verbs import open_at


@pytest.fixture
def connection(tmp_path):
    """A connection to the file of a store that has all its tables."""
    file = tmp_path / "plans.db"
    open_store(f"sqlite:///{file}").close()
    with closing(sqlite3.connect(file)) as opened:
        yield opened


@pytest.mark.parametrize("name", ["leave", "tally"])
def test_a_settle_does_not_walk_the_history(connection, name):
    sql = load("duly.store.sqlite", "settle")[name]

    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", {"now": 1}).fetchall()

    assert [row[3] for row in plan if row[3].startswith("SCAN ended")] == []


def test_a_claim_under_a_full_limit_costs_the_same_however_much_waits_or_has_ended(tmp_path):
    lane = limited_lane(LANE, TASK)
    op = ClaimRuns(WORKER, (Want(None, LANE, 9),), TASKS, "", ClaimLimits({TASK: 2}))
    with open_at(tmp_path / "duly.db") as store:
        register(store)
        enqueue_many(store, 5, lane=lane)
        assert len(store.do(op)) == 2
        few = _steps(store, op)
        enqueue_many(store, 1_000, lane=lane)
        enqueue_many(store, 200)
        for found in claim(store):
            succeed(store, found)

        assert _steps(store, op) <= few * 1.2


def _steps(store, op):
    """Count what SQLite does for a claim that finds nothing."""
    steps = 0

    def count():
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        cursor = connection.cursor()
        connection.set_progress_handler(count, 1)
        assert list(claiming.claim(cursor, op, claiming.ClaimTime(1, 1))) == []
    return steps
