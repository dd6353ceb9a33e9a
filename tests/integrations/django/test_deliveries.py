"""Executions that another backend delivers more than once, or whose sessions are lost."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime

import psycopg
import pytest
from django.db import connection, connections

from duly import faultpoints
from duly.errors import ScheduleExists
from duly.events import ResultDropped
from duly.integrations.django import exactly_once, periodic, scheduled_task
from duly.store.due_schedules import fire_due
from duly.store.ops.recovery import Recover
from duly.worker.services.recovery import judge_unknown
from tests.integrations.django import other, tasks
from tests.integrations.django.api import task
from tests.integrations.django.test_exactly_once import bill, calls, fired
from tests.servers.processes import wait_until

SOON = 20.0
begun, may_end = threading.Event(), threading.Event()
begun_times: list[str] = []


@task(backend="other")
@exactly_once
def bill_slowly(customer: str) -> str:
    begun_times.append(customer)
    begun.set()
    assert may_end.wait(SOON)
    return f"billed {customer}"


@contextmanager
def under_way(delivery: other.Delivery) -> Iterator[ThreadPoolExecutor]:
    """Deliver once, to a task that continues until the block ends."""
    begun.clear()
    may_end.clear()
    begun_times.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(other.deliver, delivery)
        try:
            assert begun.wait(SOON)
            yield first
        finally:
            may_end.set()


@pytest.mark.timing
def test_a_doubled_delivery_returns_at_once_while_the_first_runs(scheduler):
    delivery = fired(scheduler, bill_slowly, "ada")
    with under_way(delivery) as first:
        taken = []
        for _ in range(5):
            began = time.perf_counter()
            assert other.deliver(delivery) is None
            taken.append(time.perf_counter() - began)
        assert not first.done()
    assert first.result(SOON) == "billed ada"
    assert begun_times == ["ada"]
    # The fastest of them, since the machine may be busy.
    assert min(taken) < 0.1


@pytest.mark.stores("postgres")
def test_no_session_stays_in_a_transaction_while_a_task_runs(scheduler, project):
    delivery = fired(scheduler, bill_slowly, "ada")
    with under_way(delivery), psycopg.connect(project, autocommit=True) as administrator:
        other.deliver(delivery)
        ((begun_at,),) = administrator.execute("SELECT clock_timestamp()").fetchall()

        def idle() -> int:
            (row,) = administrator.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND state LIKE 'idle in transaction%%' AND xact_start < %s",
                [begun_at],
            )
            return row[0]

        # The task continues, so a transaction that it holds open would stay open.
        wait_until(lambda: idle() == 0, seconds=SOON, what="no transaction is open any more")


@pytest.mark.stores("postgres")
def test_a_task_whose_sessions_are_lost_is_not_started_again(scheduler, project):
    delivery = fired(scheduler, bill_slowly, "ada")
    with under_way(delivery) as first:
        with psycopg.connect(project, autocommit=True) as administrator:
            administrator.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        connections.close_all()
        assert other.deliver(delivery) is None
    assert first.result(SOON) == "billed ada"
    assert begun_times == ["ada"]
    (run,) = scheduler.runs.list()
    assert run.state == "succeeded"


def make_due(name: str, instant: datetime) -> None:
    """Change a schedule as if no process had checked it since the given instant."""
    micros = round(instant.timestamp() * 1e6)
    when = f"duly_time({micros})" if connection.vendor == "postgresql" else f"{micros}"
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE duly_schedules SET next_at = {when}, look_at = {when}"  # noqa: S608
            f" WHERE name = '{name}'"
        )


def test_a_firing_whose_commit_fails_is_not_handed_over(scheduler):
    scheduled_task(cron="0 0 1 1 *", name="yearly", args=[42])(bill)
    scheduler.schedules.sync()
    calls.clear()
    make_due("yearly", datetime(datetime.now(UTC).year, 1, 1, tzinfo=UTC))

    def strike() -> None:
        faultpoints.disarm()
        raise ConnectionError("the commit is lost")

    faultpoints.arm("operate.before_commit", strike)
    with pytest.raises(ConnectionError):
        fire_due(scheduler.store, 1)
    assert (scheduler.runs.list(), other.waiting) == ([], [])
    for _ in range(2):
        periodic.PeriodicTaskScheduler().tick()

    assert [other.deliver(delivery) for delivery in other.waiting] == ["billed 42"]
    assert calls == [42]


def test_a_code_schedule_does_not_overwrite_a_schedule_of_the_admin(backend):
    from duly.task import Task as EngineTask  # noqa: PLC0415 - as the admin does

    definition = backend.app.registry.get(tasks.add.module_path)
    added = EngineTask(backend.app, definition)
    backend.app.schedules.add("nightly", added, cron="0 3 * * *", args=[1], actor="ada")
    scheduled_task(cron="0 2 * * *", name="nightly", args=[41])(tasks.add)
    with pytest.raises(ScheduleExists, match="ada") as error:
        backend.app.schedules.sync()
    assert "tasks.py" in str(error.value)
    assert backend.app.schedules.get("nightly").cron == "0 3 * * *"


def test_the_errors_of_all_attempts_are_recorded(backend):
    result = tasks.fails_thrice.enqueue()
    backend.app.worker().drain(timeout=SOON)
    result.refresh()
    assert result.status == "FAILED"
    assert len(result.errors) == 3
    assert all("try" in error.traceback for error in result.errors)
    assert [run.id for run in backend.app.dead.list()] == [result.id]


def test_a_worker_that_was_declared_dead_cannot_complete_its_run(scheduler):
    delivery = fired(scheduler, bill_slowly, "ada")
    lost = []
    scheduler.bus.subscribe(lost.append)
    with under_way(delivery) as first:
        (run,) = scheduler.runs.list()
        scheduler.store.do(Recover(run.record.worker_id, judge_unknown))
        assert run.refresh().state == "interrupted"
        assert other.deliver(delivery) is None

    assert first.result(SOON) is None
    assert run.refresh().state == "interrupted"
    assert begun_times == ["ada"]
    assert run.id in {event.run_id for event in lost if isinstance(event, ResultDropped)}
