"""More bodies want a transaction than one process has connections for."""

import threading
import time

import pytest

from duly import current
from duly.store import task_transaction
from duly.store.postgres import pool
from duly.store.postgres import store as postgres_store
from tests.servers.processes import wait_until

AN_HOUR = 3600.0

# SQLite has one writer: bodies take turns there, by other means.
pytestmark = pytest.mark.stores("postgres")


@pytest.fixture(autouse=True)
def _two_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_store, "MAX_TASK_TRANSACTIONS", 2)


class PassingTime:
    """Passes quickly for bodies that wait for a connection, by a clock or a pause."""

    def __init__(self) -> None:
        self.waited = 0.0

    def monotonic(self) -> float:
        return time.monotonic() + self.waited

    def sleep(self, _seconds: float) -> None:
        self.waited += AN_HOUR / 100
        time.sleep(0.001)


@pytest.fixture
def passing_time(monkeypatch: pytest.MonkeyPatch) -> PassingTime:
    """Replaces the clocks of what gives connections to bodies."""
    passing = PassingTime()
    monkeypatch.setattr(task_transaction, "time", passing)
    for module in (task_transaction, pool):
        monkeypatch.setattr(module, "monotonic", passing.monotonic, raising=False)
    return passing


def test_bodies_wait_for_a_connection_as_long_as_it_takes(app, passing_time):
    has_two, go_on = threading.Barrier(3), threading.Event()

    @app.task(name="pay", transaction=True)
    def pay(number: int) -> int:
        current().connection.execute("SELECT 1")
        if not go_on.is_set():
            has_two.wait(30)
            go_on.wait(30)
        return number

    runs = [pay.enqueue(number) for number in range(5)]
    with app.worker(concurrency=5):
        has_two.wait(30)
        wait_until(
            lambda: passing_time.waited > AN_HOUR, seconds=30, what="bodies to wait for an hour"
        )
        go_on.set()
        results = [run.result(timeout=30) for run in runs]

    assert results == list(range(5))
    assert [len(run.attempts()) for run in runs] == [1] * 5


def test_a_body_that_waits_for_a_connection_ends_by_its_timeout(app):
    has_two, go_on = threading.Barrier(3), threading.Event()

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        current().connection.execute("SELECT 1")
        has_two.wait(30)
        go_on.wait(30)

    @app.task(name="refund", transaction=True, timeout=0.2)
    def refund() -> None:
        current().connection.execute("SELECT 1")

    paid = [pay.enqueue() for _ in range(2)]
    with app.worker(concurrency=3):
        has_two.wait(30)
        late = refund.enqueue()
        wait_until(
            lambda: late.refresh().state == "failed", seconds=30, what="the timeout to strike"
        )
        go_on.set()
        for run in paid:
            run.result(timeout=30)

    assert [attempt.outcome for attempt in late.attempts()] == ["timed_out"]
