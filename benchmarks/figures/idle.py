"""Measures the CPU time and the statements of an idle worker."""

import time
from collections import Counter

from benchmarks.databases import Database
from benchmarks.processes import WorkerProcess, cpu_seconds
from benchmarks.report import Figure, at_most, below
from benchmarks.sizes import Sizes
from benchmarks.workload import enqueue_noops


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Let a worker finish a few runs, then leave it alone for a minute."""
    seconds = sizes.idle_seconds
    with database.fresh() as url, database.counting(url) as counted, database.bare(url) as bare:
        enqueue_noops(url, 100)
        with WorkerProcess(url, environment=counted.environment) as worker:
            worker.wait_until(bare.is_drained, "the worker is idle")
            time.sleep(sizes.settle_down_seconds)
            processes = (worker.supervisor, worker.child, worker.watchdog)
            before = [cpu_seconds(pid) for pid in processes]
            counted.begin()
            time.sleep(seconds)
            statements = counted.end()
            supervisor, child, watchdog = (
                cpu_seconds(pid) - used for pid, used in zip(processes, before, strict=True)
            )
    per_minute = (supervisor + child + watchdog) * 60 / seconds
    most = Counter(statement[:40] for statement in statements).most_common(4)
    shown = "; ".join(f"{count} x {statement}" for statement, count in most)
    return [
        Figure(
            "idle, CPU",
            database.name,
            "s in 60 s",
            [per_minute],
            (),
            (below(0.3),),
            f"supervisor {supervisor:.2f} s, child {child:.2f} s, watchdog {watchdog:.2f} s "
            f"in {seconds:g} s",
        ),
        Figure(
            "idle, statements",
            database.name,
            "per s",
            [len(statements) / seconds],
            (),
            (at_most(1),),
            f"counted by {counted.method}: {shown}",
        ),
    ]
