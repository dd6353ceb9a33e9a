"""Measures a prune: its speed, what it writes, and how long other writes take meanwhile."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.report import Figure, at_most
from benchmarks.retention.load import Latencies, measured_load
from benchmarks.retention.stores import Filled
from benchmarks.workload import register_worker
from duly.clock import MICROSECONDS
from duly.limits import DEAD_RETENTION_SECONDS, RETENTION_SECONDS, TICK_BATCH
from duly.settings import WorkerSettings
from duly.store.ops.upkeep import Prune
from duly.store.protocol import Store
from duly.store.store_factory import open_store
from duly.worker.services.pruner import Pruner

LONGEST_WAIT_MILLISECONDS = 1_000
LONGEST_PAUSE_SECONDS = 1.0
"""The pause of a service that has nothing left to delete is longer."""
_OP = Prune(
    round(RETENTION_SECONDS) * MICROSECONDS,
    TICK_BATCH,
    dead_older_than=round(DEAD_RETENTION_SECONDS) * MICROSECONDS,
)

Measured = dict[str, list[Latencies]]


class Pruned(NamedTuple):
    """How many runs a prune deleted, in which time."""

    runs: int
    seconds: float

    @property
    def rate(self) -> float:
        """Runs per second."""
        return self.runs / self.seconds


def measure(filled: Filled, *, rounds: int, seconds: float) -> Iterator[Figure]:
    """Prune alone, as the worker does under load, and while the database is dumped."""
    store = open_store(filled.url)
    worker_id = register_worker(filled.url)
    name, rows = filled.name, filled.count
    before = filled.size()
    yield Figure("size before", name, "MiB", [before / 2**20], note=f"{rows:,} runs ended")
    written = filled.written()
    alone = _prune_for(store, seconds, most=rows // 8)
    per_run = (filled.written() - written) / alone.runs
    freed = before / rows
    note = f"bare: {freed:,.0f} bytes that a run takes on disk"
    yield Figure("written to delete a run", name, "bytes", [per_run], [freed], note=note)
    yield Figure("pruned one batch after the other", name, "runs/s", [alone.rate])
    if filled.snapshot is not None:
        with filled.snapshot():
            held = [_prune_for(store, seconds / 4, most=rows // 32).rate for _ in range(4)]
        note = "bare: without it; the first and the last of four parts: "
        note += " and ".join(f"{rate:,.0f}" for rate in (held[0], held[-1]))
        rates = [alone.rate] * len(held)
        yield Figure("pruned while a snapshot is held", name, "runs/s", held, rates, note=note)

    pruner = Pruner(store, WorkerSettings())
    quiet: Measured = {"enqueue": [], "settle": []}
    busy: Measured = {"enqueue": [], "settle": []}
    rates = []
    for _ in range(rounds):
        _add(quiet, measured_load(store, worker_id, seconds))
        with _pruning(pruner):
            began, runs = time.perf_counter(), filled.pruned()
            _add(busy, measured_load(store, worker_id, seconds))
            rates.append((filled.pruned() - runs) / (time.perf_counter() - began))
    yield Figure("pruned as a worker does, under load", name, "runs/s", rates)
    yield from _latencies("while a worker prunes", name, busy, quiet)
    if filled.dump is not None:
        dumped: Measured = {"enqueue": [], "settle": []}
        with filled.dump(), _pruning(pruner):
            _add(dumped, measured_load(store, worker_id, seconds))
        first = {kind: found[:1] for kind, found in quiet.items()}
        yield from _latencies("while it prunes and pg_dump runs", name, dumped, first)
    deleted, took = filled.pruned(), filled.vacuum()
    if took is not None:
        note = f"after {deleted:,} deletes"
        yield Figure("vacuum at the pace of autovacuum", name, "s", [took], note=note)
    yield Figure("size after", name, "MiB", [filled.size() / 2**20], note=filled.free_space())
    store.close()


def _prune_for(store: Store, seconds: float, *, most: int) -> Pruned:
    """Prune one batch after the other, for some seconds or up to a number of runs."""
    op, runs, began = _OP, 0, time.perf_counter()
    while runs < most and time.perf_counter() < began + seconds:
        pruned = store.do(op)
        assert pruned is not None
        op = op._replace(position=pruned.position)
        runs += pruned.runs
        if pruned.most < TICK_BATCH:
            break
    return Pruned(runs, time.perf_counter() - began)


@contextmanager
def _pruning(pruner: Pruner) -> Iterator[None]:
    """Let the service of a worker prune in a thread."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(min(pruner.tick(), LONGEST_PAUSE_SECONDS)):
            pass

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _add(measured: Measured, found: dict[str, Latencies]) -> None:
    for kind, latencies in found.items():
        measured[kind].append(latencies)


def _latencies(when: str, name: str, found: Measured, quiet: Measured) -> Iterator[Figure]:
    for kind, each in found.items():
        for part in Latencies._fields:
            targets = (at_most(LONGEST_WAIT_MILLISECONDS),) if part == "longest" else ()
            yield Figure(
                f"{kind} of 10 {when}, {part}",
                name,
                "ms",
                [getattr(latencies, part) for latencies in each],
                [getattr(latencies, part) for latencies in quiet[kind]],
                targets,
                "bare: while nothing is pruned",
            )
