"""PostgreSQL only: a duty is left to whoever holds it, and taken over when that one is gone."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import duly
from duly import Duly
from duly.store.ops.steps import RecheckWaits
from duly.store.ops.upkeep import RegisterWorker
from duly.store.statements import load
from duly.worker.services import recovery
from duly.worker.services.recovery import Recoverer
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("postgres")

WAIT = 20.0


@pytest.fixture
def holder(app: Duly, store_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session of another worker's, in a transaction."""
    app.store.peek()
    with closing(psycopg.connect(store_url)) as connection:
        yield connection


def hold(holder: psycopg.Connection[Any], duty: str) -> None:
    """Be in the middle of a duty."""
    assert holder.execute(
        load("postgres", "tick")["lock_duty"], {"duty": duty, "longest": "300s"}
    ).fetchone()[0]


def kill(holder: psycopg.Connection[Any], store_url: str) -> None:
    """End the session, as the death of its process does."""
    with psycopg.connect(store_url, autocommit=True) as admin:
        pid = holder.info.backend_pid
        assert admin.execute("SELECT pg_terminate_backend(%s, 30000)", [pid]).fetchone()[0]


def test_when_who_holds_a_duty_is_killed_another_worker_does_it_within_an_interval(
    app, holder, store_url, monkeypatch
):
    @app.task(name="square")
    def square(number: int) -> int:
        return number * number

    @app.task(name="total", queue="parents")
    def total() -> list[Any]:
        return duly.gather([square.call(3)])

    refused = []
    apply = app.store.apply

    def note(ops: Any) -> Any:
        answers = apply(ops)
        if any(isinstance(op, RecheckWaits) for op in ops):
            refused.append(answers == [None])
        return answers

    monkeypatch.setattr(app.store, "apply", note)
    hold(holder, "recheck")
    run = total.enqueue()
    with app.worker(queues="parents", recheck=0.2):
        wait_until(
            lambda: app.runs.list(task=square) and run.refresh().state == "queued",
            seconds=WAIT,
            what="it waits for a child",
        )
        app.runs.list(task=square)[0].cancel()  # Nobody tells its parent.
        wait_until(lambda: len(refused) >= 3, seconds=WAIT, what="the worker asks for the duty")
        state_before = run.refresh().state
        assert all(refused)
        kill(holder, store_url)

        wait_until(lambda: run.refresh().is_final, seconds=WAIT, what="the lost wake-up is found")

    assert state_before == "queued"


def test_a_long_lease_is_kept_to_also_among_hundreds_of_workers(app, tmp_path, passing):
    time = passing(recovery)
    ids = [f"worker {number:03}" for number in range(250)]
    for worker_id in ids:
        lease = 60.0 if worker_id == ids[0] else 15.0
        app.store.do(RegisterWorker(worker_id, "host", 1, lease, "[]", "[]"))
    watcher = Recoverer(
        app.store,
        app.bus,
        tmp_path,
        own_ids=lambda: frozenset({"me"}),
        beats_since=lambda: 0.0,
        lease=15.0,
        beat=5.0,
    )

    live = []
    for seconds in (0, 20, 39, 1):
        time.advance(seconds)
        app.store.heartbeats().beat(ids[1:])
        watcher._look_at = 0.0
        watcher.tick()
        live.append(len(app.store.heartbeats().read()))

    assert live == [250, 250, 250, 249]


def test_a_run_that_is_due_is_promoted_though_another_worker_is_stuck_in_a_tick(app, holder):
    @app.task(name="hello")
    def hello() -> str:
        return "hello"

    with app.worker():
        assert hello.enqueue().result(timeout=WAIT) == "hello"
        hold(holder, "tick")

        assert hello.using(delay=0.1).enqueue().result(timeout=WAIT) == "hello"
