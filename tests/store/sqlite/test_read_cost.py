"""The costs of reads on SQLite, whose planner may read the whole view of all runs.

The planner of PostgreSQL uses the indexes of the tables below the view.
"""

import sqlite3
from contextlib import closing

import pytest

from duly.clock import monotonic
from duly.errors import ReadTooSlow
from duly.store.inspector import _parameters
from duly.store.read_deadline import limit_read_time
from duly.store.reads import RunFilter
from duly.store.sqlite.transaction import encoded, script
from tests.store.conformance.verbs import (
    enqueue_and_fail,
    enqueue_and_succeed,
    enqueue_one,
    register,
)

FEW, MANY = 100, 5_000
SOME_RUN = "01900000-0000-7000-8000-000000000030"
STEPS = 20
"""The number of SQLite's instructions that count as one step."""


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("runs.newest", _parameters(RunFilter(limit=10))),
        ("runs.newest", _parameters(RunFilter(limit=10, before=SOME_RUN))),
        ("runs.dead_runs", _parameters(RunFilter(states=("failed",), limit=10))),
        ("runs.states", {"run_ids": [SOME_RUN]}),
    ],
)
def test_a_page_costs_the_same_with_a_history_of_any_size(store, path, name, parameters):
    """A page of runs takes no longer after a million runs have finished."""
    register(store)
    enqueue_and_succeed(store)
    with closing(sqlite3.connect(path)) as connection:
        costs = []
        for rows in (FEW, MANY):
            fill(connection, rows)
            costs.append(cost(connection, statement(name), encoded(parameters)))

    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.stores("sqlite-wal")
def test_runs_of_a_rare_tag_are_found_without_reading_the_history(store, path, monkeypatch):
    register(store)
    enqueue_and_succeed(store)
    wanted = enqueue_one(store, tags={"order": "1"}, delay_seconds=60)
    with closing(sqlite3.connect(path)) as connection:

        def read(sql, parameters):
            costs[-1] += cost(connection, sql, parameters)
            return connection.execute(sql, parameters).fetchall()

        monkeypatch.setattr(store, "_read", read)
        costs = []
        for rows in (FEW, MANY):
            fill(connection, rows)
            costs.append(0)
            found = store.list_runs(RunFilter(states=("queued",), tag=("order", "1")))
            assert [run.id for run in found] == [wanted]
            assert store.list_runs(RunFilter(tag=("order", "2"))) == []

    assert costs[1] <= 1.5 * costs[0]


def statement(name) -> str:
    """Return the text of a statement that reads."""
    (part,) = script(name)
    return part.sql


def fill(connection, rows) -> None:
    """Add copies of the run to the history until it has this number of rows."""
    columns = [column for _, column, *_ in connection.execute("PRAGMA table_info(duly_history)")]
    copied = ", ".join(
        "printf('01900000-0000-7000-8000-%012x', number)" if column == "id" else column
        for column in columns
    )
    connection.execute(
        f"WITH RECURSIVE count (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM count "  # noqa: S608
        f"WHERE number < {rows}) INSERT OR IGNORE INTO duly_history ({', '.join(columns)}) "
        f"SELECT {copied} FROM count, (SELECT * FROM duly_history LIMIT 1)"
    )


def cost(connection, sql, parameters) -> int:
    """Count the steps of a statement."""
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    connection.set_progress_handler(step, STEPS)
    connection.execute(sql, parameters).fetchall()
    connection.set_progress_handler(None, 0)
    return steps


@pytest.mark.stores("sqlite-wal")
@pytest.mark.parametrize("name", ["runs.dead_among", "runs.scanned_dead"])
def test_a_search_for_dead_letters_reads_a_bounded_number_that_do_not_match(store, path, name):
    register(store)
    enqueue_and_fail(store)
    which = RunFilter(states=("failed",), queue="empty", since=1, limit=10, scan=50)
    with closing(sqlite3.connect(path)) as connection:
        costs = []
        for rows in (FEW, MANY):
            fill(connection, rows)
            costs.append(cost(connection, statement(name), encoded(_parameters(which))))

    assert costs[1] <= 1.5 * costs[0]


@pytest.mark.stores("sqlite-rollback")
def test_the_bound_of_a_read_includes_its_wait_for_a_lock(store, path):
    run_id = enqueue_one(store)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        began = monotonic()
        with limit_read_time(0.2), pytest.raises(ReadTooSlow):
            store.get_run(run_id)
        assert monotonic() - began < 5
        other.execute("ROLLBACK")

    assert store._read("PRAGMA busy_timeout", {}) == [(30_000,)], (
        "the timeout of other reads is unchanged"
    )
    assert store.get_run(run_id).id == run_id
