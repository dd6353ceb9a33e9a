"""A worker finds runs that have become ready below floors, woken by hints or not."""

import pytest

from duly.store.postgres import floors
from duly.worker.services.maintenance import TickPolicy
from tests.servers.processes import wait_until
from tests.store.conformance.test_floors import WAYS, Here, the_end_of
from tests.store.conformance.verbs import LANE, TASK, enqueue_and_succeed, register

PATIENCE = 20.0
SECONDS = {
    "SLOW_SECONDS": -1.0,
    "MARGIN_SECONDS": 0.0,
    "LOOK_SECONDS": 0.2,
    "LOOK_SECONDS_WITHOUT_HINTS": 0.2,
}
ABOVE_ALL = (
    "SELECT FROM duly_floors JOIN duly_look ON look = number"  # noqa: S608 - our own name
    f" WHERE lane = '{LANE}' AND due_at > (SELECT max(due_at) FROM duly_every_run)"
)


@pytest.mark.stores("postgres", "pgbouncer")
@pytest.mark.parametrize("becomes_ready", WAYS)
def test_a_worker_runs_what_has_become_ready_below_a_floor(app, tables, monkeypatch, becomes_ready):
    @app.task(name=TASK)
    def send(to: str = "") -> None: ...

    for name, seconds in SECONDS.items():
        monkeypatch.setattr(floors, name, seconds)
    # What waits is promoted when the way does it, which is late.
    monkeypatch.setattr(TickPolicy, "look", lambda *_, **__: None)
    register(app.store)
    enqueue_and_succeed(app.store)
    way = becomes_ready(Here(app.store, None, tables))
    next(way)

    with app.worker():
        wait_until(
            lambda: tables.rows(ABOVE_ALL),
            seconds=PATIENCE,
            what="the floor of the lane is above the times of all runs",
        )
        run_id = the_end_of(way)

        assert app.runs.get(run_id).result(timeout=PATIENCE) is None
