"""The overview page: the health in one sentence, and a few figures."""

from starlette.requests import Request

from duly.core.record import FinishedRunsByTask, ReadyRun, RunRecord
from duly.core.stranded_runs import find_stranded_runs
from duly.dashboard.application_view import ApplicationView
from duly.dashboard.charts import WINDOWS, chart, window_start
from duly.dashboard.pages import PageContent
from duly.dashboard.stats import HealthInputs, run_stats, summarize_health
from duly.limits import PAGE
from duly.store.reads import ScheduleFilter

_TOP = 5
_HOUR = 3_600_000_000
DEPLOYMENT = "deployment"
"""The subject of audit entries that mark deployments."""


def overview(view: ApplicationView, request: Request) -> PageContent:
    """Show the overview."""
    store = view.store
    now = store.now()
    window = request.query_params.get("window", "24h")
    window = window if window in WINDOWS else "24h"
    since, step = window_start(window, now), WINDOWS[window][1]
    ends = store.count_ends(since, step)
    last_hour = store.count_ends(window_start("1h", now), _HOUR)
    rows = _rows(view, since)
    tasks = {task: run_stats(found) for task, found in rows.items()}
    oldest = sorted(store.list_oldest_ready(), key=lambda run: run.due_at)
    due = store.list_next_schedules(PAGE)
    paused = store.list_schedules(ScheduleFilter(state="paused", limit=PAGE))
    queues = store.list_queues()
    workers, dead = store.list_workers(), store.count_dead()
    return PageContent(
        "overview.html",
        {
            "now": now,
            "window": window,
            "windows": list(WINDOWS),
            "chart": chart(
                ends,
                store.count_retries(since, step),
                store.list_audit_entries(DEPLOYMENT, 20),
                window=window,
                now=now,
            ),
            "health": summarize_health(
                HealthInputs(
                    now,
                    workers,
                    queues,
                    last_hour,
                    oldest[0].due_at if oldest else None,
                    [*due, *paused],
                    store.find_oldest_transaction(),
                    dead,
                    store.count_interrupted() if dead else 0,
                    find_stranded_runs(store.list_unregistered(), workers, oldest),
                )
            ),
            "failing": sorted(
                ((name, found) for name, found in tasks.items() if found.failed),
                key=lambda pair: (-pair[1].failed, pair[0]),
            )[:_TOP],
            "all": run_stats(row for found in rows.values() for row in found),
            "oldest": _still_queued(view, oldest[:_TOP]),
            "next": due[:_TOP],
            "ready": sum(queue.ready for queue in queues),
            "waiting": sum(queue.waiting for queue in queues),
            "running": sum(queue.running for queue in queues),
            "dead": dead,
            "live_workers": sum(worker.state == "live" for worker in workers),
            "is_empty": not (ends or queues or workers or due or paused),
        },
    )


def _rows(view: ApplicationView, since: int) -> dict[str, list[FinishedRunsByTask]]:
    rows: dict[str, list[FinishedRunsByTask]] = {}
    for row in view.store.count_ends_of_tasks(since):
        rows.setdefault(row.task, []).append(row)
    return rows


def _still_queued(view: ApplicationView, oldest: list[ReadyRun]) -> list[RunRecord]:
    runs = [view.store.get_run(run.run_id) for run in oldest]
    return [run for run in runs if run is not None and run.state == "queued"]
