"""Measures the memory of a worker's child while it works."""

from benchmarks.databases import Database
from benchmarks.processes import WorkerProcess, memory_mib
from benchmarks.report import Figure, at_most
from benchmarks.sizes import Sizes
from benchmarks.workload import enqueue_noops


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Drain once more, and read the memory of the child repeatedly. The largest value counts."""
    looks: list[tuple[float, float]] = []
    with database.fresh() as url, database.bare(url) as bare:
        enqueue_noops(url, sizes.drain_runs)
        with WorkerProcess(url) as worker:
            child = worker.child

            def look_until_drained() -> bool:
                looks.append(memory_mib(child))
                return bare.is_drained()

            worker.wait_until(look_until_drained, "the queue empties")
    pss, rss = max(looks)
    # Other Python processes on the machine share its libraries' pages and make the PSS smaller.
    note = f"RSS {rss:.1f} MiB, {len(looks)} looks; shared pages count in part"
    return [Figure("memory of a child", database.name, "MiB PSS", [pss], (), (at_most(50),), note)]
