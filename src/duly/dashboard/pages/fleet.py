"""The pages of queues, workers and tasks."""

import json
from collections import Counter
from collections.abc import Callable

from starlette.requests import Request

from duly.core.record import FinishedRunsByTask, QueueRecord, RunRecord
from duly.core.served_queues import ServedQueues
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.charts import window_start
from duly.dashboard.pages import PageContent
from duly.dashboard.stats import RunStats, run_stats
from duly.limits import PAGE
from duly.store.reads import RunFilter

_HOUR = 3_600_000_000
_ORDERS: dict[str, Callable[[RunStats], float]] = {
    "busiest": lambda found: found.runs,
    "slowest": lambda found: found.p95 or 0,
    "failing most": lambda found: found.failed / found.runs if found.runs else 0,
}
_KEPT_IN_VIEW = _HOUR
"""How long stopped workers are still listed."""


def queues(view: ApplicationView, _request: Request) -> PageContent:
    """List queues with the waiting times of their runs."""
    store = view.store
    now = store.now()
    ends: dict[str, list[FinishedRunsByTask]] = {}
    for row in store.count_ends_of_tasks(window_start("24h", now)):
        ends.setdefault(row.queue, []).append(row)
    oldest = {run.queue: run.due_at for run in store.list_oldest_ready()}
    lately: dict[str, int] = {}
    since = now - _HOUR
    for row in (*store.count_every_end_of_tasks(since), *store.count_retries_of_tasks(since)):
        lately[row.queue] = lately.get(row.queue, 0) + row.elapsed
    live = {queue.name: queue for queue in store.list_queues()}
    names = sorted({*live, *ends})
    rows = [
        (
            live.get(name, QueueRecord(name, paused=False, ready=0, waiting=0, running=0)),
            run_stats(ends.get(name, [])),
            oldest.get(name),
            lately.get(name, 0) / _HOUR,
        )
        for name in names
    ]
    return PageContent("queues.html", {"now": now, "rows": rows})


def workers(view: ApplicationView, _request: Request) -> PageContent:
    """List workers and their running runs."""
    store = view.store
    now = store.now()
    running: dict[str, list[RunRecord]] = {}
    for run in store.list_runs(RunFilter(states=("running",), limit=PAGE, scan=PAGE)):
        running.setdefault(run.worker_id or "", []).append(run)
    listed = [
        (
            worker,
            "lost" if worker.state == "dead" else worker.state,
            ServedQueues.read(worker.queues).shown(),
            json.loads(worker.tasks),
            running.get(worker.id, []),
        )
        for worker in store.list_workers()
        if not worker.has_ended or now - (worker.stopped_at or now) < _KEPT_IN_VIEW
    ]
    return PageContent("workers.html", {"now": now, "workers": listed})


def tasks(view: ApplicationView, request: Request) -> PageContent:
    """List tasks with their durations and failure rates."""
    order = request.query_params.get("order", "busiest")
    order = order if order in _ORDERS else "busiest"
    now = view.store.now()
    ends: dict[str, list[FinishedRunsByTask]] = {}
    since = window_start("24h", now)
    for row in view.store.count_ends_of_tasks(since):
        ends.setdefault(row.task, []).append(row)
    retried: Counter[str] = Counter()
    for row in view.store.count_retries_of_tasks(since):
        retried[row.task] += row.runs
    registered = {
        name
        for worker in view.store.list_workers()
        if worker.state == "live"
        for name in json.loads(worker.tasks)
    }
    names = {definition.name for definition in view.tasks.definitions()}
    names.update(each.task for each in view.store.list_unregistered())
    rows = [
        (
            name,
            run_stats(ends.get(name, [])),
            view.tasks.find(name),
            name in registered,
            retried[name],
        )
        for name in sorted(names | registered | set(ends) | set(retried))
    ]
    rows.sort(key=lambda row: (-_ORDERS[order](row[1]), row[0]))
    return PageContent(
        "tasks.html", {"now": now, "rows": rows, "order": order, "orders": list(_ORDERS)}
    )
