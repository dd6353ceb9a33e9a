"""PostgreSQL only: a prune does not read the index entries of runs that were deleted before."""

from typing import Any

import psycopg

from duly.store.ops.upkeep import Prune, PrunePosition
from duly.store.statements import load
from tests.store.conformance.verbs import claim, enqueue_many, succeed, success
from tests.store.postgres.statements import OLD

ENDED = 300
LIMIT = 100
OP = Prune(-1, LIMIT)


def end_runs(store: Any, count: int, *, at_once: bool = False) -> None:
    """Let runs end, one after the other or all at one instant."""
    enqueue_many(store, count)
    claims = claim(store)
    if at_once:
        store.apply([success(found) for found in claims])
    else:
        for found in claims:
            succeed(store, found)


def test_a_full_prune_tells_the_next_one_to_begin_after_the_deleted_runs(
    store: Any, connection: psycopg.Connection[Any]
) -> None:
    end_runs(store, ENDED)
    ends = "SELECT duly_microseconds(finished_at) FROM duly_history ORDER BY finished_at"
    ended = [at for (at,) in connection.execute(ends)]

    first = store.do(OP)
    second = store.do(OP._replace(position=first.position))

    assert (first.runs, second.runs) == (LIMIT, LIMIT)
    assert first.position.ended_from == ended[LIMIT - 1]
    assert second.position.ended_from == ended[2 * LIMIT - 1]


def test_a_prune_that_finds_few_runs_is_followed_by_one_from_the_start(store: Any) -> None:
    end_runs(store, ENDED)
    first = store.do(OP)
    end_runs(store, 1)
    last = store.do(OP._replace(limit=2 * ENDED)).position

    beyond = PrunePosition(0, first.position.ended_from + 10**12, 0)
    end_runs(store, 1)
    skipped = store.do(OP._replace(position=beyond))

    assert last == PrunePosition()
    assert (skipped.runs, skipped.position) == (0, PrunePosition())
    assert store.do(OP._replace(position=skipped.position)).runs == 1


def test_a_prune_reads_no_entries_of_deleted_runs_while_a_snapshot_is_held(
    store: Any, url: str, connection: psycopg.Connection[Any]
) -> None:
    for _ in range(20):
        end_runs(store, 100, at_once=True)
    with psycopg.connect(url) as holder:
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT 1 FROM duly_history")
        op = OP
        for _ in range(18):
            op = op._replace(position=store.do(op).position)

        from_the_start = blocks_read(connection, PrunePosition())
        continued = blocks_read(connection, op.position)

    # The rows of the 1,800 deleted runs are in about 50 blocks.
    assert from_the_start > continued + 30


def blocks_read(connection: psycopg.Connection[Any], position: PrunePosition) -> int:
    """Return how many blocks a prune reads, and undo it."""
    place = OLD | position._asdict() | {"older_than": -1, "limit": LIMIT}
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + load("postgres", "prune")["drop_runs"]
    row = connection.execute(explain.encode(), place).fetchone()
    connection.rollback()
    assert row is not None
    plan = row[0][0]["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
