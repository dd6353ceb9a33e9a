"""Measures the statements of one enqueue with many idle workers, and the delay until its start."""

import json
import random
import time
from collections import Counter
from typing import NamedTuple

from benchmarks.databases import Database
from benchmarks.figures.latency import percentile
from benchmarks.fleet import fleet
from benchmarks.report import Figure, at_most
from benchmarks.sizes import Sizes
from benchmarks.tasks import app, tell_delay

SHORTEST_GAP, LONGEST_GAP = 0.02, 0.06
DISTURBANCES = ("none", "full", "frozen", "other queues")
MOST_STATEMENTS = 4
MOST_P99_MS = {
    (2, "full"): 12,
    (2, "frozen"): 12,
    (2, "other queues"): 12,
    (8, "full"): 16,
    (8, "frozen"): 9,
    (8, "other queues"): 11,
    (32, "full"): 96,
    (32, "frozen"): 41,
    (32, "other queues"): 105,
}
"""Targets by the number of workers and the disturbance of half of them.

They are 1.5 times the figures from before hints named their runs, when every enqueue woke every
idle worker. On two cores of an AMD EPYC, that p99 was 64, 27 and 70 ms with 32 workers, 10.5, 5.1
to 6.3 and 7.2 ms with 8, and 4 to 8 ms with 2. The larger figure of a range counts, because single
figures differ by a factor of two on that machine. On a machine that does other work at the same
time, these targets mean nothing.
"""


class _Measured(NamedTuple):
    delays: list[float]
    statements: float
    most: str


def measure(database: Database, sizes: Sizes) -> list[Figure]:
    """Enqueue one run at a time. SQLite wakes all workers, so it has nothing to count."""
    figures: list[Figure] = []
    if database.name != "postgres":
        return figures
    for count in sizes.fleets:
        for disturbance in DISTURBANCES:
            name = f"{count} workers" + ("" if disturbance == "none" else f", half {disturbance}")
            found = _one_by_one(database, sizes, count, disturbance)
            if disturbance == "none":
                figures.append(
                    Figure(
                        f"statements per enqueue, {name}",
                        database.name,
                        "",
                        [found.statements],
                        (),
                        (at_most(MOST_STATEMENTS),),
                        found.most,
                    )
                )
            for percent in (50, 99):
                delay = percentile(sorted(found.delays), percent) * 1e3
                most = MOST_P99_MS.get((count, disturbance)) if percent == 99 else None
                figures.append(
                    Figure(
                        f"enqueue to start, p{percent}, {name}",
                        database.name,
                        "ms",
                        [delay],
                        (),
                        () if most is None else (at_most(most),),
                    )
                )
    return figures


def _one_by_one(database: Database, sizes: Sizes, count: int, disturbance: str) -> _Measured:
    draw = random.Random(count)
    enqueues = sizes.fleet_enqueues
    with database.fresh() as url, database.counting(url) as counted, database.bare(url) as bare:
        app.use_url(url)
        with fleet(url, count, disturbance, rest=sizes.fleet_rest_seconds):
            # Connections are opened at their first use, and workers learn of each other.
            _enqueue(sizes.fleet_warm_up, draw)
            time.sleep(sizes.settle_down_seconds)
            idle_per_second = 0.0
            if disturbance == "none":
                # Long enough for duties that come every ten seconds.
                counted.begin()
                began = time.monotonic()
                time.sleep(sizes.fleet_idle_seconds)
                idle_per_second = len(counted.end()) / (time.monotonic() - began)
            counted.begin()
            began = time.monotonic()
            _enqueue(enqueues, draw)
            total = sizes.fleet_warm_up + enqueues
            while len(bare.results(tell_delay.name)) < total:
                time.sleep(0.5)
            statements = counted.end()
            # They include the few statements of the loop above.
            idle = idle_per_second * (time.monotonic() - began)
        app.close()
        found = bare.results(tell_delay.name)[-enqueues:]
    delays = [float(json.loads(result)) for result in found]
    most = Counter(statement[:40] for statement in statements).most_common(4)
    shown = "; ".join(f"{number} x {statement}" for statement, number in most)
    return _Measured(delays, max(0.0, len(statements) - idle) / enqueues, shown)


def _enqueue(count: int, draw: random.Random) -> None:
    for _ in range(count):
        time.sleep(draw.uniform(SHORTEST_GAP, LONGEST_GAP))
        tell_delay.enqueue(time.monotonic())
