"""`manage.py duly status`: workers, queues, dead letters and next firings at a glance."""

from collections.abc import Iterator

from duly import Duly
from duly.core.amounts import amount
from duly.integrations.django.project import apps_of_project, register_project_tasks
from duly.limits import PAGE


def lines() -> Iterator[str]:
    """Yield the lines about every application of the project."""
    register_project_tasks()
    for name, app in apps_of_project().items():
        yield f"{name}"
        yield from (f"  {what:<10} {text}" for what, text in _facts(app))


def _facts(app: Duly) -> Iterator[tuple[str, str]]:
    live = [worker for worker in app.workers.list() if worker.state == "live"]
    running = amount(sum(worker.running for worker in live), "run")
    yield "workers", f"{len(live)} live, with {running}"
    for queue in app.queues.list():
        counts = f"{queue.ready} ready, {queue.waiting} waiting, {queue.running} running"
        yield "queue", f"{queue.name}: {counts}{' (paused)' if queue.paused else ''}"
    dead = app.dead.list(limit=PAGE)
    more = "" if dead.cursor is None else ", or more"
    yield "dead", f"{amount(len(dead), 'dead letter')}{more}"
    for schedule in app.schedules.list():
        if app.registry.find(schedule.task) is not None:
            when = (
                "never" if schedule.next_at is None else f"{schedule.next_at:%Y-%m-%d %H:%M:%S %Z}"
            )
            yield "schedule", f"{schedule.name}: {schedule.state}, next {when} ({schedule.when})"
