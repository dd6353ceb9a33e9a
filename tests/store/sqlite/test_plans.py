"""How SQLite goes about what it is asked: nothing that happens all the time walks the history."""

import sqlite3
from contextlib import closing

import pytest

from duly.store.opening import open_store
from duly.store.statements import load


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
