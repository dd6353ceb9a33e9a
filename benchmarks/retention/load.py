"""A steady load of a worker: enqueues, claims and settles, with the time that each write takes."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.figures.latency import percentile
from benchmarks.tasks import noop
from benchmarks.workload import LANE
from duly.core.states import State
from duly.core.verdict import Finish
from duly.store.ops.runs import ClaimRuns, Settle, Want
from duly.store.protocol import Store

PAUSE_SECONDS = 0.01
BATCH = 10


class Latencies(NamedTuple):
    """Milliseconds."""

    p50: float
    p99: float
    longest: float


def measured_load(store: Store, worker_id: str, seconds: float) -> dict[str, Latencies]:
    """Enqueue and settle runs for some seconds, and return the latencies of each kind of write."""
    with (
        repeated(lambda: _enqueue(store)) as enqueues,
        repeated(lambda: _settle(store, worker_id)) as settles,
    ):
        time.sleep(seconds)
    return {"enqueue": latencies(enqueues), "settle": latencies(settles)}


@contextmanager
def repeated(measure: Callable[[], float | None]) -> Iterator[list[float]]:
    """Measure again and again in a thread, with pauses. The yielded list receives the seconds."""
    found: list[float] = []
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.wait(PAUSE_SECONDS):
                seconds = measure()
                if seconds is not None:
                    found.append(seconds)
        except BaseException as failure:  # noqa: BLE001 - it is raised where the block ends
            failures.append(failure)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def latencies(seconds: list[float]) -> Latencies:
    """Return the percentiles of what was measured."""
    ordered = sorted(1e3 * each for each in seconds)
    return Latencies(percentile(ordered, 50), percentile(ordered, 99), ordered[-1])


def _enqueue(store: Store) -> float:
    ops = [noop.call(number).op for number in range(BATCH)]
    began = time.perf_counter()
    store.apply(ops)
    return time.perf_counter() - began


def _settle(store: Store, worker_id: str) -> float | None:
    claims = store.do(ClaimRuns(worker_id, (Want(None, LANE, BATCH),), (noop.name,)))
    verdict = Finish(State.SUCCEEDED)
    ops = [Settle(run.run_id, run.claim_number, "returned", verdict, 0) for run in claims]
    if not ops:
        return None
    began = time.perf_counter()
    store.apply(ops)
    return time.perf_counter() - began
