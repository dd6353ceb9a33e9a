"""The reads of statements while dead index entries cannot be removed, and with many queues."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from duly.core.concurrency_limits import ClaimLimits, limited_lane
from duly.core.record import Claim
from duly.store.ops.operators import LimitQueue
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.postgres import floors
from duly.store.postgres.limited_claims import SQL as CLAIM
from duly.store.store_factory import open_store
from tests.servers.kinds import POSTGRES_KINDS
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    ACTOR,
    LANE,
    TASK,
    TIMEOUT,
    WORKER,
    enqueue_many,
    register,
    succeed,
)
from tests.store.postgres.plans import BATCH, LIMITED_LANE, Server, fill
from tests.store.postgres.statements import CASES
from tests.store.postgres.test_plans import find_excess

pytestmark = [
    pytest.mark.parametrize("postgres_kind", POSTGRES_KINDS),
    pytest.mark.timeout(300),
]

DEAD = 5_000
DEAD_WAITING = 5 * DEAD
"""More than in other indexes, because a tick that promotes many runs may read many entries."""
QUEUES = 2_000
CLAIMS = {
    "claim.take",
    "claim.take_from_queue",
    "claim.take_limited",
    "claim.limited_lanes",
    "claim.limited_queues",
    "inspect.peek",
}
COUNTS = {"claim.running_in_queue", "claim.running_in_limit"}
OTHERS = {
    "carry.fresh",
    "carry.send_away",
    "tick.expire",
    "tick.park",
    "tick.promote",
    "tick.next_due",
}


@pytest.fixture
def server(url: str) -> Iterator[Server]:
    """A session on a database that has some runs of each kind."""
    open_store(url).close()
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        fill(connection, 2 * BATCH)
        connection.execute("ANALYZE")
        yield Server(connection)


@pytest.mark.parametrize(
    ("lanes", "names"),
    [((LANE, LIMITED_LANE), CLAIMS), ((LANE, "carried"), OTHERS)],
    ids=["claims", "upkeep"],
)
def test_statements_do_not_read_dead_entries_below_floors(server, url, monkeypatch, lanes, names):
    with held_snapshot(url):
        leave_dead(server.connection, *lanes)
        without_floors = statements_over_bound(server, names)
        look(url, monkeypatch)

        assert statements_over_bound(server, names) == []
        assert {words.split()[0] for words in without_floors} >= names - {"claim.limited_queues"}


def test_the_read_of_cancel_requests_does_not_touch_ended_runs(server, url):
    with held_snapshot(url):
        server.connection.execute(
            "INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at, arguments,"
            " state, worker_id, claimed_at, claim_number)"
            " SELECT gen_random_uuid(), 'gone', 'default', %s, 0, now(), now(), '',"
            " 'running', %s, now(), 1 FROM generate_series(1, %s)",
            [LANE, WORKER, DEAD_WAITING],
        )
        server.connection.execute("DELETE FROM duly_runs WHERE task = 'gone'")

        assert statements_over_bound(server, {"inspect.cancel_requests"}) == []


def test_counts_under_a_limit_do_not_read_ended_runs(server, url):
    with held_snapshot(url):
        for lane in (LANE, LIMITED_LANE):
            server.connection.execute(
                "INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at,"
                " arguments, state, worker_id, claimed_at, claim_number)"
                " SELECT gen_random_uuid(), 'gone', 'default', %s, 0, now(), now(), '', 'running',"
                " %s, timestamptz '2019-01-01', 1 FROM generate_series(1, %s)",
                [lane, WORKER, DEAD_WAITING],
            )
        server.connection.execute("DELETE FROM duly_runs WHERE task = 'gone'")
        without_floors = blocks_of(server, COUNTS)
        for name in (LIMITED_LANE, "queue default"):
            oldest = server.connection.execute(
                "SELECT duly_microseconds(min(claimed_at)) FROM duly_runs WHERE state = 'running'"
            ).fetchone()[0]
            place = {"name": name, "oldest": oldest, "margin": 0}
            server.connection.execute(CLAIM["note_limit_floor"], place)

        with_floors = blocks_of(server, COUNTS)

        assert statements_over_bound(server, COUNTS) == []
        assert all(with_floors[name] < without_floors[name] / 4 for name in COUNTS)


@pytest.mark.parametrize("kind", ["queue", "task"])
def test_a_count_from_a_floor_includes_runs_that_have_been_running_for_long(
    url, monkeypatch, postgres_kind, kind
):
    monkeypatch.setattr(floors, "SLOW_SECONDS", -1.0)
    lane = LANE if kind == "queue" else limited_lane(LANE, TASK)
    limits = ClaimLimits({TASK: 2})
    with closing(open_store(url)) as store, psycopg.connect(url, autocommit=True) as connection:
        register(store)
        if kind == "queue":
            store.do(LimitQueue("default", 2, ACTOR))
        enqueue_many(store, 4, lane=lane)
        first = take(store, limits)
        connection.execute("UPDATE duly_runs SET claimed_at = claimed_at - interval '1 hour'")
        connection.execute("DELETE FROM duly_limit_floors")

        while_full = [take(store, limits) for _ in range(3)]
        noted = connection.execute("SELECT count(*) FROM duly_limit_floors").fetchone()
        succeed(store, first[0])
        after_one_ended = [take(store, limits) for _ in range(2)]

        assert len(first) == 2
        assert while_full == [[], [], []]
        assert noted == (1,)
        assert [len(claims) for claims in after_one_ended] == [1, 0]


def test_a_floor_from_a_clock_that_was_ahead_is_written_again_and_does_not_affect_claims(
    url, postgres_kind
):
    lane, limits = limited_lane(LANE, TASK), ClaimLimits({TASK: 2})
    with closing(open_store(url)) as store, psycopg.connect(url, autocommit=True) as connection:
        register(store)
        enqueue_many(store, 1, lane=lane)
        connection.execute(
            "INSERT INTO duly_limit_floors VALUES (%s, now() + interval '1 day',"
            " now() + interval '1 day')",
            [lane.rpartition(" ")[0] + " "],
        )

        claims = take(store, limits)

        floor = "SELECT count(*) FROM duly_limit_floors WHERE noted_at <= now()"
        late = "SELECT count(*) FROM duly_runs WHERE claimed_at > now()"
        assert len(claims) == 1
        assert connection.execute(floor).fetchone() == (1,)
        assert connection.execute(late).fetchone() == (0,)


def test_statements_of_claims_read_as_little_with_thousands_of_queues(server):
    server.connection.execute(
        "INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at, arguments)"
        " SELECT gen_random_uuid(), %s, 'queue ' || n, lane, 0, now(), now(), ''"
        " FROM generate_series(1, %s) AS n, unnest(%s::text[]) AS lane",
        [TASK, QUEUES, [LANE, "other"]],
    )

    assert statements_over_bound(server, CLAIMS - {"claim.take_limited"}) == []


def test_a_slow_search_for_runs_puts_floors_in_force_and_a_fast_look_ends_them(
    url, monkeypatch, postgres_kind
):
    with closing(open_store(url)) as store, psycopg.connect(url, autocommit=True) as connection:
        monkeypatch.setattr(floors, "LOOK_SECONDS", 0.05)
        monkeypatch.setattr(floors, "SLOW_SECONDS", -1.0)
        store.peek()
        wait_until(lambda: in_force(connection), seconds=TIMEOUT, what="floors are in force")

        monkeypatch.setattr(floors, "SLOW_SECONDS", 1000.0)

        wait_until(lambda: not in_force(connection), seconds=TIMEOUT, what="no floors are in force")


# -- verbs --


def take(store: Any, limits: ClaimLimits) -> list[Claim]:
    """Claim up to ten runs under limits."""
    return store.do(ClaimRuns(WORKER, (Want(None, LANE, 10),), (TASK,), limits=limits))


@contextmanager
def held_snapshot(url: str) -> Iterator[None]:
    """Hold a snapshot, as a dump does."""
    with closing(psycopg.connect(url)) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1 FROM duly_runs")
        yield


def leave_dead(connection: psycopg.Connection[Any], *lanes: str) -> None:
    """Leave dead entries of removed runs in the indexes, before those of the ready runs."""
    for lane in lanes:
        connection.execute(
            "INSERT INTO duly_runs"
            " (id, task, queue, lane, priority, created_at, due_at, expires_at, arguments)"
            " SELECT gen_random_uuid(), 'gone', 'default', %s, 0, now(),"
            " timestamptz '2019-01-01', timestamptz '2019-01-01', '' FROM generate_series(1, %s)",
            [lane, DEAD],
        )
    connection.execute("DELETE FROM duly_runs WHERE task = 'gone'")
    connection.execute(
        "INSERT INTO duly_waiting"
        " (id, task, queue, lane, priority, created_at, due_at, expires_at, arguments)"
        " SELECT gen_random_uuid(), 'gone', 'default', %s, 0, now(), timestamptz '2019-01-01',"
        " timestamptz '2019-01-01', '' FROM generate_series(1, %s)",
        [LANE, DEAD_WAITING],
    )
    connection.execute("DELETE FROM duly_waiting WHERE task = 'gone'")


def look(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put floors in force."""
    monkeypatch.setattr(floors, "SLOW_SECONDS", -1.0)
    with closing(open_store(url)) as store:
        assert store._here().floors.look(0.0)


def in_force(connection: psycopg.Connection[Any]) -> bool:
    """Return whether claims use floors."""
    return connection.execute("SELECT number FROM duly_look").fetchone() != (None,)


def blocks_of(server: Server, names: set[str]) -> dict[str, int]:
    """Return how many blocks each statement reads."""
    with server.undone():
        return {
            case.name: server.blocks(case.sql, case.place) for case in CASES if case.name in names
        }


def statements_over_bound(server: Server, names: set[str]) -> list[str]:
    """Return the statements that read more than they may."""
    with server.undone():
        return [
            words for case in CASES if case.name in names for words in find_excess(server, case)
        ]
