"""Measures whether a claim reads more rows because of runs that it should not notice."""

from benchmarks.databases import PILES, Cost, Database
from benchmarks.report import Figure, at_least, at_most
from benchmarks.sizes import Sizes
from benchmarks.tasks import noop
from benchmarks.workload import LANE, enqueue_noops, register_worker
from duly.limits import CLAIM_BATCH
from duly.store.ops.runs import ClaimRuns, Want

READY = 1_000
TOLERANCE = 0.05


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Claim one batch from a store without other runs, and from one with a pile of each kind."""
    alone = cost_with_pile(database, None, 0)
    figures = []
    for what in PILES:
        piled = cost_with_pile(database, what, sizes.piled_runs)
        figures += [
            Figure(
                f"claim beside {sizes.piled_runs:,} {what}",
                database.name,
                unit,
                [cost],
                [alone[unit]],
                (at_least(1 - TOLERANCE, "ratio"), at_most(1 + TOLERANCE, "ratio")),
                f"{CLAIM_BATCH} of {READY:,} ready",
            )
            for unit, cost in piled.items()
        ]
    return figures


def cost_with_pile(database: Database, what: str | None, count: int) -> Cost:
    """Return the cost of a claim from a store with a pile. The ready runs are enqueued last."""
    with database.fresh() as url, database.bare(url) as bare:
        if what is not None:
            bare.pile_up(what, count)
        enqueue_noops(url, READY)
        worker_id = register_worker(url)
        want = Want(None, LANE, CLAIM_BATCH)
        return bare.claim_cost(ClaimRuns(worker_id, (want,), (noop.name,)))
