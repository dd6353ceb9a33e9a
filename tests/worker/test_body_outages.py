"""The database goes away while bodies use it: they wait for it, or run again at no cost."""

import asyncio
import threading
from types import SimpleNamespace

import psycopg
import pytest

import duly
from duly import Duly, StoreUnavailable
from duly.clock import monotonic
from duly.context import current
from duly.limits import FREE_OUTAGES
from duly.store.ops.runs import Enqueue, EnqueueAgain
from duly.store.ops.steps import EndStep
from duly.store.outage_wait import CURRENT_RUN, is_outage, retry_during_outage
from duly.worker import settle_ops
from tests.servers.kinds import BEHIND_PGBOUNCER
from tests.servers.postgres import PostgresServer
from tests.servers.processes import wait_until

on_the_newest = pytest.mark.stores(BEHIND_PGBOUNCER.name if BEHIND_PGBOUNCER else "postgres")
SOON = 30.0


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that an outage ended runs again soon."""
    monkeypatch.setattr(settle_ops, "_OUTAGE_PAUSES", settle_ops.Retry(0, base=0.01))


@pytest.fixture
def lost_app(private_postgres: PostgresServer):
    """An application on a server that the test may stop."""
    app = Duly(private_postgres.create_database())
    assert app.runs.list() == []
    yield app
    app.close()


def end_all_sessions(url: str) -> None:
    """End every session of the database but the one that asks."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def has_ended(run) -> bool:
    """Return whether a run has; False while the sessions of this very look are ended."""
    try:
        return bool(run.refresh().is_final)
    except StoreUnavailable:
        return False


def outcomes(run) -> list[str]:
    """Return how the attempts of a run ended, without waits for children and sleeps."""
    ended = [attempt.outcome for attempt in run.refresh().attempts()]
    return [outcome for outcome in ended if outcome != "suspended"]


@on_the_newest
def test_a_restart_of_the_server_fails_no_body_that_uses_the_store(lost_app, private_postgres):
    app = lost_app
    bodies = ("steps", "sleeps", "enqueues", "coroutine", "batches", "transaction")
    ready = {name: threading.Event() for name in bodies}
    is_away = threading.Event()

    def meet(name: str) -> None:
        ready[name].set()
        assert is_away.wait(SOON)

    @app.task(name="leaf")
    def leaf(number: int) -> int:
        return number

    @app.task(name="steps")
    def steps() -> int:
        meet("steps")
        return duly.step("one", int, "1") + duly.step("two", int, "2", transaction=True)

    @app.task(name="sleeps")
    def sleeps() -> int:
        meet("sleeps")
        duly.sleep("nap", 0.01)
        return sum(duly.gather([leaf.call(1), leaf.call(2)]))

    @app.task(name="enqueues")
    def enqueues() -> str:
        meet("enqueues")
        return leaf.enqueue(3).id

    @app.task(name="batches")
    def batches() -> list[str]:
        meet("batches")
        calls = [leaf.call(number) for number in range(3)]
        return [run.id for run in app.enqueue_many(calls)]

    @app.task(name="coroutine")
    async def coroutine() -> str:
        await asyncio.to_thread(meet, "coroutine")
        await duly.astep("one", int, "1")
        return (await leaf.aenqueue(4)).id

    @app.task(name="transaction", transaction=True)
    def transaction() -> int:
        connection = current().connection
        connection.execute("SELECT 1")
        if not is_away.is_set():
            meet("transaction")
        return connection.execute("SELECT 7").fetchone()[0]

    with app.worker(concurrency=8):
        tasks = (steps, sleeps, enqueues, coroutine, batches, transaction)
        runs = [task.enqueue() for task in tasks]
        assert all(event.wait(SOON) for event in ready.values())
        private_postgres.stop("fast")
        is_away.set()
        private_postgres.start()
        results = [run.result(timeout=SOON) for run in runs]
        left = [results[2], results[3], *results[4]]
        assert [app.runs.get(run_id).result(timeout=SOON) for run_id in left] == [3, 4, 0, 1, 2]

    assert results[:2] == [3, 3]
    assert results[5] == 7
    assert [outcomes(run) for run in runs[:5]] == [["returned"]] * 5
    assert outcomes(runs[5]) == ["outage", "returned"]
    assert {run.record.attempt for run in runs} == {1}


@pytest.mark.stores("postgres")
def test_a_connection_that_is_lost_inside_a_transaction_costs_no_attempt(app, store_url):
    @app.task(name="whole", transaction=True, retries=0)
    def whole(times: int) -> int:
        connection = current().connection
        ended = len(app.runs.get(current().run_id).attempts())
        if ended < times:
            end_all_sessions(store_url)
        connection.execute("SELECT 1")
        return ended

    @app.task(name="part", retries=0)
    def part() -> int:
        ended = len(app.runs.get(current().run_id).attempts())

        def act() -> int:
            if not ended:
                end_all_sessions(store_url)
            current().connection.execute("SELECT 1")
            return ended

        return duly.step("act", act, transaction=True)

    with app.worker(concurrency=1):
        runs = [whole.enqueue(2), part.enqueue()]
        wait_until(lambda: all(map(has_ended, runs)), seconds=SOON, what="both have ended")
        assert [run.result(timeout=SOON) for run in runs] == [2, 1]

    assert [outcomes(run) for run in runs] == [
        ["outage", "outage", "returned"],
        ["outage", "returned"],
    ]
    assert [(run.record.attempt, run.record.retries_used) for run in runs] == [(1, 0), (1, 0)]


def test_too_many_outages_in_a_row_cost_an_attempt(app):
    starts = []

    @app.task(name="unlucky", retries=duly.Retry(1, base=0.01))
    def unlucky() -> None:
        starts.append(1)
        raise StoreUnavailable("the database is away")

    with app.worker(concurrency=1):
        run = unlucky.enqueue()
        with pytest.raises(duly.RunFailed):
            run.result(timeout=SOON)

    row = ["outage"] * FREE_OUTAGES + ["raised"]
    assert outcomes(run) == row * 2
    assert (run.state, run.cause, run.record.attempt) == ("failed", "outage", 2)
    assert len(starts) == 2 * len(row)


def test_a_hold_task_that_an_outage_ends_is_interrupted(app):
    @app.task(name="charge", on_crash="hold")
    def charge() -> None:
        raise StoreUnavailable("the database is away")

    @app.task(name="steps")
    def steps() -> None:
        def act() -> None:
            raise ValueError("wrapped") from StoreUnavailable("the database is away")

        duly.step("charge", act, on_crash="hold")

    with app.worker(concurrency=1):
        runs = [charge.enqueue(), steps.enqueue()]
        for run in runs:
            with pytest.raises(duly.RunInterrupted):
                run.result(timeout=SOON)

    assert [outcomes(run) for run in runs] == [["outage"], ["outage", "vanished"]]
    assert [run.cause for run in runs] == ["outage", "crashed"]


@pytest.mark.stores("sqlite")
def test_a_hold_task_is_interrupted_by_every_outage(app):
    @app.task(name="charge", on_crash="hold")
    def charge() -> None:
        raise StoreUnavailable("the database is away")

    with app.worker(concurrency=1):
        run = charge.enqueue()
        for _ in range(FREE_OUTAGES + 1):
            with pytest.raises(duly.RunInterrupted):
                run.result(timeout=SOON)
            run.retry()
        with pytest.raises(duly.RunInterrupted):
            run.result(timeout=SOON)


def test_a_body_waits_no_longer_than_its_attempt_may_take(app, monkeypatch):
    apply = app.store.apply
    steps = []

    def fail_steps(ops):
        if not isinstance(ops[0], EndStep):
            return apply(ops)
        steps.append(ops[0])

        def fail() -> None:
            raise StoreUnavailable("the database is away")

        return retry_during_outage(fail)

    @app.task(name="plain", timeout=0.3, retries=0)
    def plain() -> None:
        duly.step("one", int)

    @app.task(name="coroutine", timeout=0.3, retries=0)
    async def coroutine() -> None:
        await duly.astep("one", int)

    monkeypatch.setattr(app.store, "apply", fail_steps)
    with app.worker(concurrency=1):
        runs = [plain.enqueue(), coroutine.enqueue()]
        for run in runs:
            with pytest.raises(duly.RunFailed):
                run.result(timeout=SOON)

    assert [run.cause for run in runs] == ["timed_out", "timed_out"]
    assert len(steps) == 2


def test_only_a_body_waits_for_the_store():
    tries = []

    def fail() -> None:
        tries.append(monotonic())
        raise StoreUnavailable("the database is away")

    with pytest.raises(StoreUnavailable):
        retry_during_outage(fail)
    assert len(tries) == 1

    run = SimpleNamespace(wait_until=lambda: tries[0] + 0.5)
    token = CURRENT_RUN.set(run)
    try:
        tries[:] = [monotonic()]
        with pytest.raises(StoreUnavailable):
            retry_during_outage(fail)
    finally:
        CURRENT_RUN.reset(token)
    assert len(tries) > 3
    assert tries[-1] < tries[0] + 0.5


def test_waiting_for_another_transaction_is_no_outage():
    assert is_outage(StoreUnavailable("away"))
    assert not is_outage(duly.errors.StoreBusy("held"))
    assert not is_outage(duly.errors.WouldBlockItself("held"))
    assert not is_outage(ValueError())


@pytest.mark.stores("sqlite")
def test_a_body_whose_error_is_its_own_cause_fails(app):
    @app.task(name="circle")
    def circle() -> None:
        first, around = ValueError("the first"), RuntimeError("around it")
        around.__cause__ = first
        raise first from around

    run = circle.enqueue()
    ending = threading.Thread(target=app.worker().drain, daemon=True)
    ending.start()
    ending.join(SOON)
    assert not ending.is_alive()
    assert run.refresh().state == "failed"


def test_an_enqueue_that_is_repeated_is_accepted_once(app):
    @app.task(name="leaf")
    def leaf(number: int) -> None: ...

    calls = [
        leaf.call(1),
        leaf.using(key="k", unique="active").call(2),
        leaf.using(delay=60).call(3),
    ]
    ops: list[Enqueue] = [call.op for call in calls]
    again = [EnqueueAgain._make(op) for op in ops]
    new = EnqueueAgain._make(leaf.call(4).op)

    app.store.apply(ops[:1])
    app.store.apply(ops[1:2])
    app.store.apply(ops[2:])
    app.worker().drain(timeout=SOON)
    answers = [answer for op in (*again, new) for answer in app.store.apply([op])]
    together = app.store.apply([*again, new])

    assert [answer.run_id for answer in answers] == [op.run_id for op in (*ops, new)]
    assert all(answer.new for answer in (*answers, *together))
    assert len(app.runs.list()) == 4


@pytest.mark.stores("sqlite-wal")
def test_a_disk_that_is_full_for_a_while_fails_no_body_that_uses_the_store(app):
    full, filled = threading.Event(), threading.Event()
    large = "x" * 100_000

    @app.task(name="leaf")
    def leaf(text: str) -> int:
        return len(text)

    @app.task(name="stepped")
    def stepped() -> int:
        full.set()
        assert filled.wait(SOON)
        duly.step("large", lambda: large)
        return sum(duly.gather([leaf.call(large), leaf.call(large)]))

    def set_room(pages: int) -> None:
        here = app.store._process
        with here.lock.held():
            here.writer.execute(f"PRAGMA max_page_count = {pages}")

    with app.worker():
        run = stepped.enqueue()
        assert full.wait(SOON)
        with app.store._process.lock.held():
            (pages,) = app.store._process.writer.execute("PRAGMA page_count").fetchone()
        set_room(pages)
        filled.set()
        with pytest.raises(TimeoutError):
            run.result(timeout=1.0)
        set_room(pages + 10_000)

        assert run.result(timeout=SOON) == 2 * len(large)
    assert outcomes(run) == ["returned"]
