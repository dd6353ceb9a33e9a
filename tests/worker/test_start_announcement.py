"""A supervisor announces its start once, however many other workers there are."""

from duly.events import SupervisorReady
from duly.limits import PAGE
from duly.settings import WorkerSettings
from duly.store.ops.upkeep import RegisterWorker
from duly.worker.supervisor_services import StartAnnouncement


def register(app, *names):
    app.store.apply(
        [RegisterWorker(name, "host", 1, 15.0, "[]", f'["task of {name}"]') for name in names]
    )


def test_a_start_is_announced_although_more_workers_than_a_page_registered_since(app):
    events = []
    app.bus.subscribe(events.append)
    register(app, "0 own")
    register(app, *(f"newer {number}" for number in range(PAGE + 1)))
    start = StartAnnouncement(
        app.store, app.bus, lambda: "0 own", "shop:app", WorkerSettings(), processes=1
    )

    for _ in range(2):
        start.tick()

    (ready,) = [event for event in events if isinstance(event, SupervisorReady)]
    assert ready.tasks == ("task of 0 own",)


def test_a_start_is_announced_once_its_worker_is_registered(app):
    events = []
    app.bus.subscribe(events.append)
    start = StartAnnouncement(
        app.store, app.bus, lambda: "own", "shop:app", WorkerSettings(), processes=1
    )

    pause = start.tick()
    register(app, "own")
    start.tick()

    assert pause < 1
    assert [event.tasks for event in events if isinstance(event, SupervisorReady)] == [
        ("task of own",)
    ]
