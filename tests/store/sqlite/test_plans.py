"""The query plans of SQLite: no frequent statement reads the whole history."""

import json
import sqlite3
import time
from contextlib import closing

import pytest

from duly.clock import SystemClock
from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.states import SlotKind
from duly.store.ops.operators import LimitQueue, PauseQueue
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.upkeep import Prune, Tick
from duly.store.sqlite import claim as claiming
from duly.store.sqlite.transaction import SqliteTransaction
from duly.store.statements import SQL_FOLDER, load
from duly.store.store_factory import open_store
from duly.store.verbs.verb import carry_out
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    TASK,
    TASKS,
    WORKER,
    claim,
    enqueue_many,
    hand_over,
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


def test_a_prune_reads_no_more_payloads_than_it_may_delete(connection):
    """SQLite reads a whole payload to determine its length."""
    size, read = 1_000_000, []

    def length(value):
        if value is None:
            return None
        read.append(len(value))
        return read[-1]

    connection.create_function("length", 1, length)
    connection.executemany(
        "INSERT INTO duly_history (id, task, queue, lane, state, priority, generation, "
        "claim_number, attempt, retries_used, crashes, created_at, due_at, finished_at, arguments) "
        "VALUES (?, 't', 'q', 'l', 'cancelled', 0, 1, 1, 1, 0, 0, 1, 1, 1, ?)",
        [(f"{number:08}", "x" * size) for number in range(40)],
    )
    parameters = dict.fromkeys(("older_than", "dead_older_than", "never", "look", "parent_look"), 1)
    parameters |= {"now": 10, "limit": 1000, "bytes": 8 * size, "parent_tag": "parent"}

    script = load("sqlite", "prune").script("drop_runs")
    ((pruned, *_),) = connection.execute(script[0].sql, parameters).fetchall()

    assert pruned == 8
    assert sum(read) == 8 * size


def test_a_prune_deletes_a_run_without_a_write_to_its_row(tmp_path, connection):
    with open_at(tmp_path / "plans.db") as store:
        register(store)
        enqueue_many(store, 3)
        for found in claim(store):
            succeed(store, found)
        connection.execute(
            "CREATE TRIGGER no_marks BEFORE UPDATE ON duly_history "
            "BEGIN SELECT RAISE(ABORT, 'a row was written'); END"
        )

        assert store.do(Prune(-1, 10)).runs == 3


def test_no_statement_has_a_having_without_groups():
    """SQLite before 3.39 refuses such a statement, and duly supports older versions."""
    for file in SQL_FOLDER.glob("*.sqlite.sql"):
        statements = load("sqlite", file.name.partition(".")[0])
        for name, text in statements._texts.items():
            for part in text.split("-- :then"):
                assert part.count("HAVING") <= part.count("GROUP BY"), f"{name} in {file.name}"


@pytest.mark.parametrize("name", ["leave", "tally"])
def test_a_settle_does_not_read_the_whole_history(connection, name):
    sql = load("sqlite", "settle")[name]

    plan = connection.execute(f"EXPLAIN QUERY PLAN {sql}", {"now": 1}).fetchall()

    assert [row[3] for row in plan if row[3].startswith("SCAN ended")] == []


def test_a_claim_under_a_full_limit_costs_the_same_with_any_number_of_waiting_or_ended_runs(
    tmp_path,
):
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


@pytest.mark.parametrize("what", ["ready", "later", "parked", "due", "stuck", "old"])
def test_a_tick_costs_the_same_with_any_number_of_runs(tmp_path, what):
    with open_at(tmp_path / "duly.db") as store:
        register(store)
        add_runs(store, what, 100)
        few = _steps_of_a_tick(store)
        add_runs(store, what, 3_000)

        assert _steps_of_a_tick(store) <= few * 1.2


def test_a_tick_that_parks_a_few_runs_does_not_read_those_of_every_queue(tmp_path):
    with open_at(tmp_path / "duly.db") as store:
        register(store)
        for number in range(40):
            enqueue_many(store, 50, queue=f"q{number}")
        idle = _steps_of_a_tick(store)

        store.do(PauseQueue("q0", paused=True, actor=ACTOR))

        assert _steps_of_a_tick(store) <= idle


def add_runs(store, what, number):
    """Add runs that a tick has to skip, or only some of which it handles."""
    options = {
        "later": {"delay_seconds": 3_600},
        "due": {"delay_seconds": 0.001},
        "parked": {"queue": "paused"},
        "stuck": {"task": "unknown"},
        "old": {"expires_seconds": 0.001},
    }
    if what == "parked":
        store.do(PauseQueue("paused", paused=True, actor=ACTOR))
    enqueue_many(store, number, **options.get(what, {}))
    if what == "parked":
        while store.do(Tick(1_000)).parked:
            pass
    time.sleep(0.002)


def _steps_of_a_tick(store):
    """Count the steps of SQLite during a tick that may handle 50 runs, and undo the tick."""
    steps = 0

    def count():
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.set_progress_handler(count, 1)
        carry_out(SqliteTransaction(connection.cursor(), SystemClock()), Tick(50))
        connection.set_progress_handler(None, 0)
        connection.execute("ROLLBACK")
    return steps


def test_handing_runs_over_counts_the_runs_of_a_limited_queue_once(tmp_path):
    with open_at(tmp_path / "duly.db") as store:
        register(store)
        enqueue_many(store, 1_000, lane=SlotKind.CARRIED)
        assert len(hand_over(store, limit=500)) == 500
        unlimited = _steps_of_handing_over(store)

        store.do(LimitQueue("default", 1_000, ACTOR))

        assert _steps_of_handing_over(store) <= unlimited * 1.5


def _steps_of_handing_over(store):
    """Count the steps of SQLite for finding 500 runs to hand over while 500 are handed over."""
    place = {"tasks": json.dumps(TASKS), "limit": 500, "stale": 1, "now": store.now()}
    steps = 0

    def count():
        nonlocal steps
        steps += 1
        return 0

    with closing(sqlite3.connect(store.path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.set_progress_handler(count, 100)
        for part in load("sqlite", "carry").script("fresh"):
            cursor = connection.execute(part.sql, place)
            rows = cursor.fetchall()
        assert len(rows) == 500
    return steps


def _steps(store, op):
    """Count the steps of SQLite for a claim that finds nothing."""
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
