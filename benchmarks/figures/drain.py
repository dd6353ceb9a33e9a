"""Measures how fast one worker process empties a queue of tasks that do nothing.

Both rates come from the times in the store: the number of runs settled after the first settle,
divided by the time from that settle to the last. So the start and the end of a process are not
included.
"""

from statistics import median

from benchmarks.databases import Database
from benchmarks.processes import WorkerProcess
from benchmarks.report import Figure, at_least, interleave
from benchmarks.sizes import Sizes
from benchmarks.tasks import noop
from benchmarks.workload import enqueue_noops, register_worker
from duly.limits import CLAIM_BATCH

PER_SECOND = {"sqlite": 15_000, "postgres": 12_000}


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Drain fresh stores, in turn with a real worker and with a bare loop."""
    batches: list[float] = []
    duly, bare = interleave(
        sizes.rounds,
        bare=lambda: drain_bare(database, sizes.drain_runs),
        duly=lambda: drain_by_worker(database, sizes.drain_runs, batches),
    )
    bound = PER_SECOND[database.name.split()[0]]
    targets = (at_least(bound), at_least(0.6, "ratio"))
    note = f"{median(batches):.0f} runs per settle, {CLAIM_BATCH} in the bare loop"
    return [Figure("drain", database.name, "runs/s", duly, bare, targets, note)]


def drain_bare(database: Database, runs: int) -> float:
    """Claim and finish in one thread, batch by batch, as many at a time as a worker claims."""
    with database.fresh() as url:
        enqueue_noops(url, runs)
        worker_id = register_worker(url)
        with database.bare(url) as bare:
            bare.drain(worker_id, noop.name, batch=CLAIM_BATCH)
            assert bare.is_drained()
            return bare.settle_rate()


def drain_by_worker(database: Database, runs: int, batches: list[float]) -> float:
    """Claim and finish with a supervisor that has one child and default settings."""
    with database.fresh() as url:
        enqueue_noops(url, runs)
        with database.bare(url) as bare:
            with WorkerProcess(url) as worker:
                seconds = 60.0 + runs / 200
                worker.wait_until(bare.is_drained, "the queue empties", seconds=seconds)
            batches.append(bare.runs_per_settle())
            return bare.settle_rate()
