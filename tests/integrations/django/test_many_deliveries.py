"""The load on the database of many long tasks at once, each of them delivered twice.

`make test` runs a few of them for a moment, `make prove` 50 for half a minute.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import psycopg
import pytest

from duly.integrations.django import exactly_once
from tests.integrations.django import other
from tests.integrations.django.api import task
from tests.integrations.django.test_carried_by_processes import handed_over
from tests.integrations.django.test_shop_kills import LIBRARIES
from tests.integrations.evidence import SCALE, keep
from tests.servers.processes import wait_until

BODIES, SECONDS = (50, 30.0) if SCALE > 1 else (4, 1.5)
SOON = 120.0
IDLE = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND state LIKE 'idle in transaction%'
   AND state_change < clock_timestamp() - interval '1 second'
"""
under_way = threading.Semaphore(0)


@task(backend="other")
@exactly_once
def bill_at_length() -> str:
    under_way.release()
    time.sleep(SECONDS)
    return "billed"


@contextmanager
def sessions_watched(url: str) -> Iterator[list[int]]:
    """Count repeatedly how many sessions are idle in a transaction for longer than a second."""
    found: list[int] = []
    is_over = threading.Event()

    def look() -> None:
        with psycopg.connect(url, autocommit=True) as administrator:
            while not is_over.wait(0.1):
                found.extend(row[0] for row in administrator.execute(IDLE))

    with ThreadPoolExecutor(1) as pool:
        looking = pool.submit(look)
        try:
            yield found
        finally:
            is_over.set()
            looking.result()


@pytest.mark.scaled
@pytest.mark.stores("postgres")
@pytest.mark.timeout(600)
def test_a_doubled_delivery_of_each_takes_no_slot_and_leaves_no_transaction_open(
    scheduler, project, store_kind
):
    handed_over(scheduler, BODIES, bill_at_length)
    took = []
    with ThreadPoolExecutor(BODIES) as slots, sessions_watched(project) as idle:
        bodies = [slots.submit(other.deliver, delivery) for delivery in other.waiting]
        for _ in bodies:
            assert under_way.acquire(timeout=SOON)

        # One slot runs all doubled deliveries, one after the other.
        for delivery in other.waiting:
            began = time.perf_counter()
            assert other.deliver(delivery) is None
            took.append(time.perf_counter() - began)

        meanwhile = sum(not body.done() for body in bodies)
        assert [body.result(SOON) for body in bodies] == ["billed"] * BODIES
    late = sum(seconds >= 0.1 for seconds in took)
    told = {
        "bodies": BODIES,
        "seconds": SECONDS,
        "bodies_under_way_behind_the_last": meanwhile,
        "looks": len(idle),
        "idle_in_transaction": max(idle),
        "median_milliseconds": round(1e3 * median(took), 1),
        "slowest_milliseconds": round(1e3 * max(took), 1),
        "broken": [f"{late} took 100 ms or longer"] if late else [],
    }
    keep("django-doubled", store_kind, told, *LIBRARIES)
    assert max(idle) == 0
    assert meanwhile == BODIES
    assert not late or SCALE == 1, told
    # The machine may be busy with other tests.
    assert min(took) < 0.1
    wait_until(
        lambda: {run.state for run in scheduler.runs.list(limit=BODIES)} == {"succeeded"},
        seconds=SOON,
        what="all outcomes are recorded",
    )
