"""PostgreSQL only: with many queues, each round of parking and moving reads some of the queues."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from duly.core.states import SlotKind
from duly.store.ops.carriers import RerouteRuns
from duly.store.ops.runs import Enqueue
from duly.store.statements import load
from duly.store.store_factory import open_store
from duly.store.verbs import carriers, upkeep
from tests.servers.kinds import POSTGRES_KINDS
from tests.store.conformance.verbs import (
    LANE,
    OTHER_TASK,
    TASK,
    enqueue_one,
    order,
    pause,
    register,
    run_of,
    tick,
)
from tests.store.postgres.plans import BATCH, Server, fill
from tests.store.postgres.statements import CASES
from tests.store.postgres.test_plans import find_excess

SOME = 10
"""The number of queues of a lane that one round reads here."""
QUEUES = [f"queue {number:02}" for number in range(3 * SOME + 5)]
FIRST_AND_LAST = QUEUES[0], QUEUES[-1]
LOOKS = 4
"""The number of rounds that read them all."""


@pytest.fixture(autouse=True)
def _some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TICK_BATCH", SOME)
    monkeypatch.setattr(carriers, "TICK_BATCH", SOME)


@pytest.fixture
def run_ids(store: Any) -> dict[str, str]:
    """One ready run in each queue."""
    ops: list[Enqueue] = [order(queue=queue) for queue in QUEUES]
    return {queue: run.run_id for queue, run in zip(QUEUES, store.apply(ops), strict=True)}


def let_a_second_pass(connection: psycopg.Connection[Any]) -> None:
    """Let a second pass, after which the next round is recorded again."""
    connection.execute("UPDATE duly_duties SET done_at = done_at - interval '2 seconds'")
    connection.commit()


def reached(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the queue after which the next round begins, if it is not the first."""
    found = connection.execute("SELECT reached FROM duly_duties WHERE reached <> ''").fetchall()
    connection.commit()
    return [queue for (queue,) in found]


@pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS)
@pytest.mark.parametrize("name", ["tick.park", "carry.send_away"])
def test_one_round_reads_as_little_with_hundreds_of_queues(many_queues, name):
    (case,) = (case for case in CASES if case.name == name)
    of_two_lanes = 2 * BATCH

    with many_queues.undone():
        assert find_excess(many_queues, case._replace(rows=of_two_lanes + BATCH)) == []


@pytest.fixture
def many_queues(url: str) -> Iterator[Server]:
    """A session on a database that has runs in hundreds of queues of two lanes."""
    open_store(url).close()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        fill(connection, 2 * BATCH)
        connection.execute(
            "INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at, arguments)"
            " SELECT gen_random_uuid(), %s, 'queue ' || n, lane, 0, now(), now(), ''"
            " FROM generate_series(1, 500) AS n, unnest(%s::text[]) AS lane",
            [TASK, [LANE, "other"]],
        )
        connection.execute("ANALYZE")
        yield Server(connection)


def test_rounds_in_turn_park_the_runs_of_every_queue(store, connection, run_ids):
    pause(store, QUEUES[-1])
    last = ticks_until(
        lambda: run_of(store, run_ids[QUEUES[-1]]).parked == "paused", store, connection
    )
    pause(store, QUEUES[0])
    first = ticks_until(
        lambda: run_of(store, run_ids[QUEUES[0]]).parked == "paused", store, connection
    )

    assert last == LOOKS
    assert first == 1, "the first queues follow after the last one"


def test_rounds_in_turn_move_the_runs_of_every_queue_to_their_carrier(store, connection, run_ids):
    first, last = (enqueue_one(store, task=OTHER_TASK, queue=queue) for queue in FIRST_AND_LAST)
    register(store, lanes={OTHER_TASK: SlotKind.CARRIED})

    moved = []
    for _ in range(LOOKS):
        moved += store.apply([RerouteRuns(100)])
        let_a_second_pass(connection)

    assert moved == [1, 0, 0, 1]
    assert [run_of(store, run_id).lane for run_id in (first, last)] == [SlotKind.CARRIED] * 2


def test_a_round_that_leaves_runs_is_repeated_before_the_next_queues(store, connection, run_ids):
    pause(store, QUEUES[0])
    for _ in range(4):
        enqueue_one(store, queue=QUEUES[0])

    parked = []
    for _ in range(4):
        parked.append((tick(store, 2).parked, reached(connection)))
        let_a_second_pass(connection)

    assert [count for count, _ in parked] == [2, 2, 1, 0]
    assert [len(queues) for _, queues in parked] == [0, 0, 1, 1]


def test_only_one_of_the_ticks_within_a_second_records_its_round(store, connection, run_ids):
    tick(store)
    first = reached(connection)
    tick(store)

    assert first == [QUEUES[SOME - 1]]
    assert reached(connection) == first


def test_a_tick_does_not_wait_for_another_one_that_records_its_round(store, connection, run_ids):
    place = {"name": "parked", "reached": QUEUES[0]}
    connection.execute(load("postgres", "tick")["note_reached"], place)

    ticked = tick(store)
    connection.commit()

    assert ticked.parked == 0
    assert reached(connection) == [QUEUES[0]]


def ticks_until(
    is_done: Callable[[], bool], store: Any, connection: psycopg.Connection[Any]
) -> int:
    """Tick until a condition holds; return the number of ticks."""
    for number in range(1, 2 * LOOKS):
        tick(store)
        let_a_second_pass(connection)
        if is_done():
            return number
    raise AssertionError("no tick made the condition hold")
