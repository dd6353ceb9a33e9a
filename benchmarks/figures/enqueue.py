"""Measures how fast runs are accepted: one by one, from many callers at once, and in bulk."""

import asyncio
import time

from benchmarks.databases import Bare, Database
from benchmarks.report import Figure, at_least, interleave
from benchmarks.sizes import Sizes
from benchmarks.tasks import app, noop
from benchmarks.workload import noop_ops
from duly.limits import ENQUEUE_BATCH

CONCURRENT_PER_SECOND = {"sqlite": 15_000, "postgres": 8_000}


def measure_one(database: Database, sizes: Sizes) -> list[Figure]:
    """Compare one caller with one commit per call to the same INSERT through the bare driver."""
    count = sizes.single_enqueues

    def call_bare() -> float:
        parameters = bare.parameters(noop_ops(count))
        began = time.perf_counter()
        for row in parameters:
            bare.insert_one(row)
        return count / (time.perf_counter() - began)

    def call_duly() -> float:
        began = time.perf_counter()
        for number in range(count):
            noop.enqueue(number)
        return count / (time.perf_counter() - began)

    with database.fresh() as url, database.bare(url) as bare:
        _open(url, bare)
        duly, bare_rates = interleave(sizes.rounds, bare=call_bare, duly=call_duly)
        app.close()
    targets = (at_least(0.7, "ratio"),)
    return [Figure("enqueue", database.name, "runs/s", duly, bare_rates, targets)]


def measure_concurrent(database: Database, sizes: Sizes) -> list[Figure]:
    """Measure many coroutines on one loop. Each awaits one `aenqueue` after the other."""
    callers, each = sizes.concurrent_callers, sizes.enqueues_per_caller

    async def call() -> None:
        for number in range(each):
            await noop.aenqueue(number)

    async def call_concurrently() -> float:
        began = time.perf_counter()
        await asyncio.gather(*(call() for _ in range(callers)))
        return callers * each / (time.perf_counter() - began)

    with database.fresh() as url, database.bare(url) as bare:
        _open(url, bare)
        rates = [asyncio.run(call_concurrently()) for _ in range(sizes.rounds)]
        app.close()
    targets = (at_least(CONCURRENT_PER_SECOND[database.name.split()[0]]),)
    note = f"{callers} callers"
    return [Figure("aenqueue", database.name, "runs/s", rates, (), targets, note)]


def measure_many(database: Database, sizes: Sizes) -> list[Figure]:
    """Compare `enqueue_many`, including its encoding, to the bare INSERT of encoded rows."""
    count = sizes.bulk_enqueues

    def call_bare() -> float:
        ops = noop_ops(count)
        began = time.perf_counter()
        for first in range(0, count, ENQUEUE_BATCH):
            bare.insert_many(ops[first : first + ENQUEUE_BATCH])
        return count / (time.perf_counter() - began)

    def call_duly() -> float:
        began = time.perf_counter()
        runs = app.enqueue_many(noop.call(number) for number in range(count))
        seconds = time.perf_counter() - began
        assert len(runs) == count
        return count / seconds

    with database.fresh() as url, database.bare(url) as bare:
        _open(url, bare)
        duly, bare_rates = interleave(sizes.rounds, bare=call_bare, duly=call_duly)
        app.close()
    targets = (at_least(60_000),)
    return [Figure("enqueue_many", database.name, "runs/s", duly, bare_rates, targets)]


def _open(url: str, bare: Bare) -> None:
    """Connect duly and the bare driver, and use each a few times, so no first use is measured."""
    app.use_url(url)
    for number in range(10):
        noop.enqueue(number)
    for row in bare.parameters(noop_ops(10)):
        bare.insert_one(row)
