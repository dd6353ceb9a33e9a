"""The figures by name. They are measured and shown in this order."""

from collections.abc import Callable

from benchmarks.databases import Database
from benchmarks.figures import (
    beats,
    burst,
    callers,
    claim_cost,
    drain,
    enqueue,
    held_snapshot,
    idle,
    imports,
    latency,
    memory,
    schedules,
    wakeups,
)
from benchmarks.report import Figure
from benchmarks.sizes import Sizes

ON_A_DATABASE: dict[str, Callable[[Database, Sizes], list[Figure]]] = {
    "drain": drain.measure,
    "burst": burst.measure,
    "enqueue": enqueue.measure_one,
    "aenqueue": enqueue.measure_concurrent,
    "enqueue_many": enqueue.measure_many,
    "callers": callers.measure,
    "latency": latency.measure,
    "held_snapshot": held_snapshot.measure,
    "idle": idle.measure,
    "claim": claim_cost.measure,
    "memory": memory.measure,
    "schedules": schedules.measure,
    "wakeups": wakeups.measure,
    "beats": beats.measure,
}
WITHOUT_A_DATABASE: dict[str, Callable[[Sizes], list[Figure]]] = {"import": imports.measure}
NAMES = (*ON_A_DATABASE, *WITHOUT_A_DATABASE)
