"""Measures the time from a call of `enqueue` to the start of the body in an idle worker."""

import json
import random
import time
from collections.abc import Callable

from benchmarks.databases import Bare, Database
from benchmarks.processes import WorkerProcess
from benchmarks.report import Figure, at_most
from benchmarks.sizes import Sizes
from benchmarks.tasks import app, tell_delay

SHORTEST_GAP, LONGEST_GAP = 0.01, 0.04
"""A new random gap precedes each call, so the calls cannot synchronize with a polling worker."""


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Leave gaps between the calls, so that the worker is idle at each."""
    rounds = [_delays(database, sizes.spaced_enqueues) for _ in range(sizes.rounds)]
    p50 = [percentile(delays, 50) * 1e3 for delays in rounds]
    p99 = [percentile(delays, 99) * 1e3 for delays in rounds]
    note = f"{sizes.spaced_enqueues} calls per round"
    return [
        Figure("enqueue to start, p50", database.name, "ms", p50, (), (at_most(3),), note),
        Figure("enqueue to start, p99", database.name, "ms", p99, (), (at_most(10),), note),
    ]


def _delays(database: Database, count: int) -> list[float]:
    with database.fresh() as url, database.bare(url) as bare:
        return spaced_delays(url, bare, count)


def spaced_delays(
    url: str,
    bare: Bare,
    count: int,
    *,
    warm_up: Callable[[WorkerProcess], None] = lambda _worker: None,
) -> list[float]:
    """Return the sorted seconds from enqueue to start of all runs but the slowest."""
    draw = random.Random(count)
    app.use_url(url)
    with WorkerProcess(url) as worker:
        tell_delay.enqueue(time.monotonic())
        worker.wait_until(bare.is_drained, "the first run ends")
        warm_up(worker)
        for _ in range(count):
            time.sleep(draw.uniform(SHORTEST_GAP, LONGEST_GAP))
            tell_delay.enqueue(time.monotonic())
        worker.wait_until(bare.is_drained, "the last run ends")
    app.close()
    delays = [float(json.loads(result)) for result in bare.results(tell_delay.name)]
    assert len(delays) == count + 1
    # The longest may be the first, which waited for the worker's start.
    return sorted(delays)[:-1]


def percentile(ordered: list[float], percent: int) -> float:
    """Return a percentile of sorted values."""
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
