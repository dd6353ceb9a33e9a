"""PostgreSQL only: with many queues, parking and moving between lanes look at some in each turn."""

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
from tests.store.postgres.test_plans import too_dear

SOME = 10
"""How many queues of a lane one look sees here."""
QUEUES = [f"queue {number:02}" for number in range(3 * SOME + 5)]
FIRST_AND_LAST = QUEUES[0], QUEUES[-1]
LOOKS = 4
"""So many looks see them all."""


@pytest.fixture(autouse=True)
def _some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "TICK_BATCH", SOME)
    monkeypatch.setattr(carriers, "TICK_BATCH", SOME)


@pytest.fixture
def run_ids(store: Any) -> dict[str, str]:
    """One ready run in each queue."""
    ops: list[Enqueue] = [order(queue=queue) for queue in QUEUES]
    return {queue: run.run_id for queue, run in zip(QUEUES, store.apply(ops), strict=True)}


def a_moment_later(connection: psycopg.Connection[Any]) -> None:
    """Let the second be over in which no other look is noted."""
    connection.execute("UPDATE duly_duties SET done_at = done_at - interval '2 seconds'")
    connection.commit()


def reached(connection: psycopg.Connection[Any]) -> list[str]:
    """Return behind which queue the next look begins, if it is not the first."""
    found = connection.execute("SELECT reached FROM duly_duties WHERE reached <> ''").fetchall()
    connection.commit()
    return [queue for (queue,) in found]


@pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS)
@pytest.mark.parametrize("name", ["tick.park", "carry.send_away"])
def test_one_look_reads_as_little_with_hundreds_of_queues(many_queues, name):
    (case,) = (case for case in CASES if case.name == name)
    of_two_lanes = 2 * BATCH

    with many_queues.undone():
        assert too_dear(many_queues, case._replace(rows=of_two_lanes + BATCH)) == []


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


def test_looks_in_turn_park_the_runs_of_every_queue(store, connection, run_ids):
    pause(store, QUEUES[-1])
    last = looks_until(
        lambda: run_of(store, run_ids[QUEUES[-1]]).parked == "paused", store, connection
    )
    pause(store, QUEUES[0])
    first = looks_until(
        lambda: run_of(store, run_ids[QUEUES[0]]).parked == "paused", store, connection
    )

    assert last == LOOKS
    assert first == 1, "behind the last queue, the first ones follow"


def test_looks_in_turn_move_the_runs_of_every_queue_to_their_carrier(store, connection, run_ids):
    first, last = (enqueue_one(store, task=OTHER_TASK, queue=queue) for queue in FIRST_AND_LAST)
    register(store, lanes={OTHER_TASK: SlotKind.CARRIED})

    moved = []
    for _ in range(LOOKS):
        moved += store.apply([RerouteRuns(100)])
        a_moment_later(connection)

    assert moved == [1, 0, 0, 1]
    assert [run_of(store, run_id).lane for run_id in (first, last)] == [SlotKind.CARRIED] * 2


def test_a_look_that_leaves_runs_is_repeated_before_the_next_queues(store, connection, run_ids):
    pause(store, QUEUES[0])
    for _ in range(4):
        enqueue_one(store, queue=QUEUES[0])

    parked = []
    for _ in range(4):
        parked.append((tick(store, 2).parked, reached(connection)))
        a_moment_later(connection)

    assert [count for count, _ in parked] == [2, 2, 1, 0]
    assert [len(queues) for _, queues in parked] == [0, 0, 1, 1]


def test_ticks_that_follow_each_other_note_one_look_in_a_second(store, connection, run_ids):
    tick(store)
    first = reached(connection)
    tick(store)

    assert first == [QUEUES[SOME - 1]]
    assert reached(connection) == first


def test_a_tick_does_not_wait_for_another_one_that_notes_its_look(store, connection, run_ids):
    place = {"name": "parked", "reached": QUEUES[0]}
    connection.execute(load("postgres", "tick")["note_reached"], place)

    ticked = tick(store)
    connection.commit()

    assert ticked.parked == 0
    assert reached(connection) == [QUEUES[0]]


def looks_until(
    is_done: Callable[[], bool], store: Any, connection: psycopg.Connection[Any]
) -> int:
    """Tick until something is so; return how many ticks that took."""
    for number in range(1, 2 * LOOKS):
        tick(store)
        a_moment_later(connection)
        if is_done():
            return number
    raise AssertionError("no tick has done it")
