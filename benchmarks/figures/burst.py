"""Measures whether a worker is as fast after a rest as before.

During a rest, the server vacuums and analyzes tables that have just been emptied. Plans that follow
such statistics must not slow down the next burst.
"""

import time

from benchmarks.databases import Bare, Database
from benchmarks.processes import WorkerProcess
from benchmarks.report import Figure, at_least
from benchmarks.sizes import Sizes
from benchmarks.workload import enqueue_noops

LEAST_SHARE = 0.5


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Send one worker bursts of runs, with a rest before each except the first."""
    with (
        database.fresh() as url,
        database.bare(url) as bare,
        WorkerProcess(url) as worker,
    ):
        drain_burst(url, bare, worker, 1)
        rates = [drain_burst(url, bare, worker, sizes.drain_runs)]
        for _ in range(sizes.rested_bursts):
            time.sleep(sizes.rest_seconds)
            rates.append(drain_burst(url, bare, worker, sizes.drain_runs))
    shares = [rate / rates[0] for rate in rates[1:]]
    note = "runs/s: " + ", ".join(f"{rate:.0f}" for rate in rates)
    slowest = [min(shares)]
    return [Figure("burst", database.name, "of first", slowest, (), (at_least(LEAST_SHARE),), note)]


def drain_burst(url: str, bare: Bare, worker: WorkerProcess, runs: int) -> float:
    """Return how many runs per second were enqueued and done."""
    began = time.monotonic()
    enqueue_noops(url, runs)
    worker.wait_until(bare.is_drained, "the burst is done", seconds=60.0 + runs / 200)
    return runs / (time.monotonic() - began)
