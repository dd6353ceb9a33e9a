"""Ends of attempts that a server refuses to record: for a while, for ever, or for their value."""

import psycopg
import pytest

from duly import Duly
from duly.events import EngineFailed
from duly.runtime import settler
from tests.servers.processes import wait_until

pytestmark = pytest.mark.stores("postgres")
SOON = 30.0


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
