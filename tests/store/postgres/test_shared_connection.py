"""How long writes wait for the services of their process, which share a connection with them."""

import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from duly.settings import WorkerSettings
from duly.store.ops.steps import BeginStep, EndStep
from duly.worker.services.maintenance import Scheduler, TickPolicy
from duly.worker.services.pruner import Pruner
from tests.store.conformance.test_schedules import put
from tests.store.conformance.verbs import claim_one, enqueue_and_succeed, enqueue_one

SECONDS = 6.0
ROWS = 100_000
SCHEDULES = 400
LIMIT_SECONDS = 0.05
_COPY = """
INSERT INTO {table}
SELECT copy.*
  FROM (SELECT * FROM {table} LIMIT 1) AS one
 CROSS JOIN pg_catalog.generate_series(1, {rows}) AS number
 CROSS JOIN LATERAL pg_catalog.jsonb_populate_record(
       NULL::{table}, to_jsonb(one) || pg_catalog.jsonb_build_object(
           'id', pg_catalog.gen_random_uuid(), '{column}', now() - interval '1 year', 'n', number)
       ) AS copy
"""


def fill(store: Any, connection: psycopg.Connection[Any]) -> None:
    """Leave many runs to prune and to promote, and many schedules that are due."""
    enqueue_and_succeed(store)
    enqueue_one(store, delay_seconds=3600)
    for number in range(SCHEDULES):
        put(store, f"schedule {number}")
    for table, column in (("duly_history", "finished_at"), ("duly_waiting", "due_at")):
        connection.execute(_COPY.format(table=table, column=column, rows=ROWS))
    connection.execute("ANALYZE")
    connection.commit()


def serve(store: Any, over: threading.Event, counts: dict[str, int]) -> None:
    """Prune, tick and fire without a pause, as the thread for services does."""
    day = 86_400.0
    pruner = Pruner(store, WorkerSettings(retention=day, dead_retention=day, act_retention=day))
    ticks, scheduler = TickPolicy(store), Scheduler(store)
    make_due = "UPDATE duly_schedules SET next_at = now(), look_at = now()"
    with psycopg.connect(store.url, autocommit=True) as connection:
        while not over.is_set():
            pruner.tick()
            ticked = ticks.look(time.monotonic(), due=True, stuck=False, parked=False)
            if not ticked.promoted:
                over.set()
            counts["promoted"] += ticked.promoted
            connection.execute(make_due)
            scheduler.tick()


def p99(took: list[float]) -> float:
    return statistics.quantiles(took, n=100)[98]


def measure(store: Any, services: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """Return how long writes of each kind took, and how much the services did meanwhile."""
    over = threading.Event()
    took: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    enqueue_one(store, queue="steps")
    held = claim_one(store, queue="steps")

    def write_steps() -> None:
        number = 0
        while not over.is_set():
            number += 1
            name = f"step {time.monotonic_ns()}"
            begin = BeginStep(held.run_id, held.claim_number, name, "step")
            timed("step", lambda: store.do(begin))  # noqa: B023 - called at once
            end = EndStep(held.run_id, held.claim_number, name, "null")
            timed("step", lambda: store.do(end))  # noqa: B023 - called at once

    def enqueue() -> None:
        while not over.is_set():
            timed("enqueue", lambda: enqueue_one(store, queue="other"))
            time.sleep(0.002)

    def timed(kind: str, act: Callable[[], object]) -> None:
        began = time.monotonic()
        act()
        took[kind].append(time.monotonic() - began)

    threads = [threading.Thread(target=act) for act in (write_steps, enqueue)]
    threads += [threading.Thread(target=serve, args=(store, over, counts)) for _ in range(services)]
    for thread in threads:
        thread.start()
    over.wait(SECONDS)
    over.set()
    for thread in threads:
        thread.join()
    return took, counts


@pytest.mark.timing
def test_writes_wait_little_for_services_at_full_load(store, connection):
    fill(store, connection)

    alone, _ = measure(store, services=0)
    beside, counts = measure(store, services=1)

    found = {
        kind: f"p50 {statistics.median(took) * 1000:.1f} p99 {p99(took) * 1000:.1f} "
        f"max {max(took) * 1000:.1f} ms (alone {p99(alone[kind]) * 1000:.1f})"
        for kind, took in beside.items()
    }
    assert counts["promoted"] > ROWS / 10
    assert all(p99(took) < LIMIT_SECONDS for took in beside.values()), found
