"""Measures the start of runs while a transaction keeps ended runs in the indexes."""

import time

from benchmarks.databases import Bare, Database
from benchmarks.databases.postgres import Postgres, dead_runs
from benchmarks.figures.latency import percentile, spaced_delays
from benchmarks.processes import WorkerProcess
from benchmarks.report import Figure, at_most
from benchmarks.sizes import Sizes
from benchmarks.tasks import noop

SOON_SECONDS = 0.1
SOON_IN_A_ROW = 5
LONGEST_WAIT_SECONDS = 20.0


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Leave gaps between the calls, with dead runs that cannot be vacuumed. SQLite keeps none."""
    if not isinstance(database, Postgres):
        return []
    p50, p99, onset = [], [], []
    for _ in range(sizes.rounds):
        with (
            database.fresh() as url,
            database.bare(url) as bare,
            dead_runs(url, sizes.piled_runs),
        ):
            delays = spaced_delays(
                url,
                bare,
                sizes.spaced_enqueues,
                warm_up=lambda worker, bare=bare: onset.append(_seconds_until_fast(worker, bare)),
            )
        p50.append(percentile(delays, 50) * 1e3)
        p99.append(percentile(delays, 99) * 1e3)
    note = f"{sizes.piled_runs} dead rows, after {max(onset):.1f} s of slow claims"
    name = "under a held snapshot"
    return [
        Figure(f"{name}, p50", database.name, "ms", p50, (), (at_most(10),), note),
        Figure(f"{name}, p99", database.name, "ms", p99, (), (at_most(100),), note),
    ]


def _seconds_until_fast(worker: WorkerProcess, bare: Bare) -> float:
    """Enqueue one run after another until several in a row were fast. Return the seconds."""
    began = time.monotonic()
    in_a_row = 0
    while in_a_row < SOON_IN_A_ROW and time.monotonic() < began + LONGEST_WAIT_SECONDS:
        called = time.monotonic()
        noop.enqueue(0).result(timeout=60.0)
        in_a_row = in_a_row + 1 if time.monotonic() < called + SOON_SECONDS else 0
    worker.wait_until(bare.is_drained, "the last run of the warm-up ends")
    return time.monotonic() - began
