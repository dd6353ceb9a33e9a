"""Metrics for Prometheus, read from the store when they are requested.

Every process of a deployment returns the same values, so one target is enough. The names and what
they count are in docs/how-to/monitoring.md.
"""

from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from duly.clock import MICROSECONDS
from duly.core.histogram_bounds import BOUNDS
from duly.core.record import FinishedRunsByTask, QueueRecord
from duly.core.served_queues import ServedQueues
from duly.core.stranded_runs import find_stranded_runs
from duly.limits import GROUPS, PAGE
from duly.store.reads import Inspector, RunFilter

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class StoreProvider(Protocol):
    """The part of an application that metrics need: its open store."""

    @property
    def store(self) -> Inspector: ...


class DulyCollector(Collector):
    """A collector to register: `REGISTRY.register(DulyCollector(app))`."""

    def __init__(self, app: StoreProvider) -> None:
        self._app = app

    def describe(self) -> list[Metric]:
        """Return no metrics, since registering must not open the database."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Read all metrics from the store."""
        store = self._app.store
        ends = store.count_every_end_of_tasks(0)
        yield _runs(ends)
        yield _retries(store.count_retries_of_tasks(0))
        yield from _lengths(ends)
        yield from _queues(store, {row.queue for row in ends})
        yield _dead(store)
        yield _workers(store)
        yield _unserved(store)
        yield _lags(store)


def exposition(app: StoreProvider) -> bytes:
    """Return all metrics in the text format of Prometheus."""
    registry = CollectorRegistry()
    registry.register(DulyCollector(app))
    return generate_latest(registry)


def _runs(ends: list[FinishedRunsByTask]) -> Metric:
    found = CounterMetricFamily(
        "duly_runs", "Runs that ended.", labels=["task", "queue", "outcome"]
    )
    sums: dict[tuple[str, str, str], int] = {}
    for row in ends:
        place = (row.task, row.queue, row.state)
        sums[place] = sums.get(place, 0) + row.runs
    for labels, runs in sums.items():
        found.add_metric(list(labels), runs)
    return found


def _retries(rows: list[FinishedRunsByTask]) -> Metric:
    found = CounterMetricFamily(
        "duly_retries",
        "Attempts that failed or were lost and were followed by another attempt.",
        labels=["task", "queue"],
    )
    sums: Counter[tuple[str, str]] = Counter()
    for row in rows:
        sums[row.task, row.queue] += row.runs
    for labels, attempts in sums.items():
        found.add_metric(list(labels), attempts)
    return found


def _lengths(ends: list[FinishedRunsByTask]) -> Iterator[Metric]:
    yield _histogram(
        "duly_run_duration_seconds",
        "Time from the first start of runs to their end, including waits between attempts.",
        "task",
        [(row.task, row.took, row.runs, row.lasted) for row in ends],
    )
    yield _histogram(
        "duly_queue_wait_seconds",
        "How long runs had been due when their last attempts started.",
        "queue",
        [(row.queue, row.waited, row.runs, row.delay) for row in ends],
    )


def _histogram(
    name: str, words: str, label: str, rows: list[tuple[str, int, int, int]]
) -> HistogramMetricFamily:
    found = HistogramMetricFamily(name, words, labels=[label])
    counts: dict[str, Counter[int]] = {}
    lengths: Counter[str] = Counter()
    for value, bound, runs, length in rows:
        counts.setdefault(value, Counter())[bound] += runs
        lengths[value] += length
    for value in sorted(counts):
        mine = counts[value]
        below = accumulate(mine[bound] for bound in BOUNDS)
        buckets = [
            (str(bound / 1_000), float(runs)) for bound, runs in zip(BOUNDS, below, strict=True)
        ]
        buckets.append(("+Inf", float(mine.total())))
        found.add_metric([value], buckets=buckets, sum_value=lengths[value] / MICROSECONDS)
    return found


def _queues(store: Inspector, known: set[str]) -> Iterator[Metric]:
    """Yield the depth of queues, including empty queues if any of their runs has ended."""
    depth = GaugeMetricFamily(
        "duly_queue_depth", "Runs that have not ended, counted to 10001.", labels=["queue", "state"]
    )
    queues = {queue.name: queue for queue in store.list_queues()}
    for name in sorted(known - queues.keys()):
        queues[name] = QueueRecord(name, paused=False, ready=0, waiting=0, running=0)
    for queue in queues.values():
        for state in ("ready", "waiting", "running"):
            depth.add_metric([queue.name, state], getattr(queue, state))
    yield depth
    age = GaugeMetricFamily(
        "duly_queue_oldest_age_seconds",
        "How long the oldest claimable run has been due; 0 if no run is claimable.",
        labels=["queue"],
    )
    now = store.now()
    ages = dict.fromkeys(queues, 0.0)
    for run in store.list_oldest_ready():
        ages[run.queue] = max(0, now - run.due_at) / MICROSECONDS
    for name, seconds in ages.items():
        age.add_metric([name], seconds)
    yield age


def _dead(store: Inspector) -> Metric:
    found = GaugeMetricFamily(
        "duly_dead_letters", "Runs that wait for an operator.", labels=["task"]
    )
    sums: dict[str, int] = {}
    for group in store.list_dead_groups(RunFilter(limit=GROUPS)):
        sums[group.task] = sums.get(group.task, 0) + group.count
    for task, number in sums.items():
        found.add_metric([task], number)
    return found


def _workers(store: Inspector) -> Metric:
    found = GaugeMetricFamily("duly_workers", "Workers that are live.", labels=["queues"])
    # If all workers are gone, report a zero, so that alerts see it.
    sums: dict[str, int] = {}
    for worker in store.list_workers():
        served = ServedQueues.read(worker.queues).shown()
        sums[served] = sums.get(served, 0) + (worker.state == "live")
    for served, number in (sums or {"all": 0}).items():
        found.add_metric([served], number)
    return found


def _unserved(store: Inspector) -> Metric:
    found = GaugeMetricFamily(
        "duly_unserved_runs",
        "Due runs that no live worker can run, counted to 10001.",
        labels=["task", "queue"],
    )
    oldest = store.list_oldest_ready()
    for each in find_stranded_runs(store.list_unregistered(), store.list_workers(), oldest):
        found.add_metric([each.task, each.queue], each.runs)
    return found


def _lags(store: Inspector) -> Metric:
    found = GaugeMetricFamily(
        "duly_schedule_lag_seconds", "How late due schedules are to fire.", labels=["schedule"]
    )
    now = store.now()
    for schedule in store.list_next_schedules(PAGE):
        late = max(0, now - (schedule.next_at or now)) / MICROSECONDS
        found.add_metric([schedule.name], late)
    return found
