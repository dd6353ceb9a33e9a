"""A worker finds runs that have become ready below floors, woken by hints or not."""

import pytest

from duly.clock import new_id
from duly.store.postgres import floors
from tests.servers.processes import wait_until

PATIENCE = 20.0


@pytest.mark.stores("postgres", "pgbouncer")
def test_a_worker_runs_what_has_become_ready_below_a_floor(app, tables, monkeypatch):
    @app.task(name="shop:send")
    def send() -> None:
        pass

    monkeypatch.setattr(floors, "SLOW_SECONDS", -1.0)
    with app.worker():
        send.enqueue().result(timeout=PATIENCE)
        wait_until(
            lambda: tables.rows("SELECT 1 FROM duly_floors JOIN duly_look ON look = number"),
            seconds=PATIENCE,
            what="floors are in force for the lane of the task",
        )
        run_id = new_id()

        # Nobody sends a hint, as in a transaction of a caller that has died after its commit.
        tables.execute(
            "INSERT INTO duly_runs (id, task, queue, lane, priority, created_at, due_at, arguments)"  # noqa: S608
            f" SELECT '{run_id}', task, queue, lane, priority, created_at, due_at, arguments"
            " FROM duly_history"
        )

        assert app.runs.get(run_id).result(timeout=PATIENCE) is None
