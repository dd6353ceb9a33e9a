"""Ends of attempts that a server refuses to record: for a while, for ever, or for their value."""

import threading
from time import monotonic

import psycopg
import pytest

from duly import Duly
from duly.events import EngineFailed, WorkerGaveUp
from duly.worker import settler
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("postgres")
SOON = 30.0
LEASE = 1.5


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be recorded is tried again soon."""
    monkeypatch.setattr(settler, "_LONGEST_PAUSE", 0.1)


@pytest.fixture
def connection(app: Duly, store_url: str):
    """A connection to the tables of the store."""
    assert app.runs.list() == []
    with psycopg.connect(store_url, autocommit=True) as connection:
        yield connection


def refuse_ends(connection, code: str, *, times: int = 1_000_000, task: str = "%") -> None:
    """Let the server refuse so many ends of a task, with this error."""
    connection.execute("CREATE SEQUENCE refused")
    connection.execute(
        f"""CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF new.task LIKE '{task}' AND nextval('refused') <= {times} THEN
                RAISE EXCEPTION 'refused' USING errcode = '{code}';
            END IF;
            RETURN new; END $$"""
    )
    connection.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON duly_history FOR EACH ROW EXECUTE FUNCTION refuse()"
    )


@pytest.mark.parametrize("code", ["53200", "25P03", "XX000"])
def test_a_returned_body_succeeds_after_short_errors_of_the_server(app, connection, code):
    @app.task(name="pay")
    def pay() -> str:
        return "paid"

    refuse_ends(connection, code, times=2)
    with app.worker(concurrency=1):
        run = pay.enqueue()
        assert run.result(timeout=SOON) == "paid"

    assert [attempt.outcome for attempt in run.attempts()] == ["returned"]


@pytest.mark.parametrize("code", ["22003", "23514", "54000"])
def test_a_value_that_the_server_cannot_store_fails_its_run(app, connection, code):
    @app.task(name="pay")
    def pay() -> str:
        return "paid"

    refuse_ends(connection, code, times=2)
    with app.worker(concurrency=1):
        run = pay.enqueue()
        wait_until(lambda: run.refresh().state == "failed", seconds=SOON, what="the run fails")

    assert run.cause == "unrecordable"


def test_a_task_whose_ends_are_refused_keeps_no_other_task_waiting(app, connection):
    @app.task(name="refused")
    def refused(number: int) -> int:
        return number

    @app.task(name="other")
    def other(number: int) -> int:
        return number

    events = []
    app.bus.subscribe(events.append)
    refuse_ends(connection, "P0001", task="refused")
    with app.worker(concurrency=4) as worker:
        stuck = [refused.enqueue(number) for number in range(3)]
        wait_until(
            lambda: sum(isinstance(event, EngineFailed) for event in events) > 6,
            seconds=SOON,
            what="the ends are refused more than once",
        )
        others = [other.enqueue(number) for number in range(3)]
        assert [run.result(timeout=SOON) for run in others] == [0, 1, 2]
        assert worker.is_live
        assert {run.refresh().state for run in stuck} == {"running"}

        connection.execute("DROP TRIGGER refuse ON duly_history")
        assert [run.result(timeout=SOON) for run in stuck] == [0, 1, 2]


@pytest.mark.parametrize("code", ["53100", "P0001"])
def test_a_worker_whose_ends_are_refused_for_longer_than_its_lease_keeps_its_runs(
    app, connection, code
):
    """A full disk, or a trigger that fails: the server answers, so the worker is of use."""

    @app.task(name="refused")
    def refused() -> int:
        return 1

    events = []
    app.bus.subscribe(events.append)
    refuse_ends(connection, code)
    with app.worker(concurrency=1, lease=LEASE, beat=LEASE / 3) as worker:
        holder = worker.worker_id
        run = refused.enqueue()
        wait_until(lambda: refusals(connection) > 0, seconds=SOON, what="an end is refused")
        since = monotonic()
        wait_until(
            lambda: monotonic() - since > 3 * LEASE and refusals(connection) > 3,
            seconds=SOON,
            what="the ends are refused for longer than the lease",
        )
        connection.execute("DROP TRIGGER refuse ON duly_history")
        assert run.result(timeout=SOON) == 1
        assert worker.worker_id == holder

    assert not any(isinstance(event, WorkerGaveUp) for event in events)
    assert [attempt.outcome for attempt in run.attempts()] == ["returned"]


def test_a_worker_whose_run_is_locked_for_longer_than_its_lease_keeps_its_runs(
    app, connection, store_url
):
    begun, may_end = threading.Event(), threading.Event()

    @app.task(name="linger")
    def linger() -> int:
        begun.set()
        assert may_end.wait(SOON)
        return 1

    events = []
    app.bus.subscribe(events.append)
    with app.worker(concurrency=1, lease=LEASE, beat=LEASE / 3) as worker:
        holder = worker.worker_id
        run = linger.enqueue()
        assert begun.wait(SOON)
        with psycopg.connect(store_url) as locking:
            locking.execute("SELECT FROM duly_runs WHERE id = %s FOR UPDATE", [run.id])
            may_end.set()
            waiting = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            wait_until(
                lambda: connection.execute(waiting).rowcount > 0,
                seconds=SOON,
                what="the end waits for the row",
            )
            since = monotonic()
            wait_until(
                lambda: monotonic() - since > 3 * LEASE,
                seconds=SOON,
                what="the row is locked for longer than the lease",
            )
        assert run.result(timeout=SOON) == 1
        assert worker.worker_id == holder

    assert not any(isinstance(event, WorkerGaveUp) for event in events)
    assert [attempt.outcome for attempt in run.attempts()] == ["returned"]


def refusals(connection) -> int:
    """Return how often the server refused an end."""
    answer = connection.execute("SELECT last_value FROM refused WHERE is_called").fetchone()
    return 0 if answer is None else answer[0]
