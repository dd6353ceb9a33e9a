"""`transaction=True`: a body's writes and its completion are one fenced commit."""

import threading

import pytest

from duly import (
    CONNECTION,
    BadArguments,
    BadOption,
    Duly,
    Retry,
    RunConnection,
    current,
    faultpoints,
)
from duly.errors import WouldBlockItself
from duly.events import ResultDropped
from tests.worker.application_table import rows, write
from tests.worker.waits import take_over, wait_until_empty


def test_what_a_body_writes_is_there_when_it_has_succeeded(app, tables):
    @app.task(name="pay", transaction=True)
    def pay(amount: int) -> int:
        write()
        return amount

    run = pay.enqueue(5)
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) == 5
    assert rows(tables) == [(run.id, 1)]
    assert [attempt.outcome for attempt in run.attempts()] == ["returned"]


def test_a_parameter_can_be_annotated_for_the_connection(app, tables):
    @app.task(name="pay", transaction=True)
    def pay(amount: int, connection: RunConnection = CONNECTION, *, note: str = "") -> str:
        connection.execute(f"INSERT INTO ledger VALUES ('{current().run_id}', {amount})")  # noqa: S608
        return note

    run = pay.enqueue(5, note="paid")
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) == "paid"
    assert rows(tables) == [(run.id, 5)]
    with pytest.raises(BadArguments):
        pay.enqueue(5, connection=CONNECTION)
    with pytest.raises(BadOption, match="transaction=True"):

        @app.task(name="other")
        def other(connection: RunConnection = CONNECTION) -> None: ...


def test_nothing_of_it_is_seen_before_and_all_of_it_after(app, tables):
    written, go_on = threading.Event(), threading.Event()

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        write()
        written.set()
        go_on.wait(30)

    run = pay.enqueue()
    with app.worker():
        assert written.wait(20)
        seen = rows(tables), str(app.runs.get(run.id).state)
        go_on.set()
        run.result(timeout=20)

    assert seen == ([], "running")
    assert rows(tables) == [(run.id, 1)]


def test_a_body_that_raises_leaves_nothing_behind(app, tables):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        write()
        message = "no money"
        raise ValueError(message)

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert (run.refresh().state, run.record.error) == ("failed", "ValueError: no money")
    assert rows(tables) == []


def test_of_several_attempts_only_the_one_that_succeeded_has_written(app, tables):
    @app.task(name="pay", transaction=True, retries=Retry(3, base=0.0))
    def pay() -> None:
        write()
        if current().attempt < 3:
            raise ValueError

    run = pay.enqueue()
    with app.worker():
        run.result(timeout=20)

    assert rows(tables) == [(run.id, 3)]


def test_many_transactions_each_write_once(app, tables):
    @app.task(name="pay", transaction=True)
    def pay(number: int) -> None:
        write()

    runs = app.enqueue_many(pay.call(n) for n in range(30))
    app.worker(concurrency=4).drain(timeout=40)

    assert sorted(run for run, _ in rows(tables)) == sorted(run.id for run in runs)


def test_a_claim_that_was_lost_meanwhile_rolls_all_back(app, tables):
    entered, go_on = threading.Event(), threading.Event()
    events = []
    app.bus.subscribe(events.append)

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        entered.set()
        go_on.wait(30)
        write()

    run = pay.enqueue()
    with app.worker(lease=60, beat=20) as worker:
        assert entered.wait(20)
        take_over(app, worker, run.id)
        go_on.set()
        wait_until_empty(worker)

    assert rows(tables) == []
    assert (run.refresh().state, run.record.attempt) == ("queued", 2)
    assert [e for e in events if isinstance(e, ResultDropped)] == [ResultDropped(run.id, 1)]


def test_the_next_holder_writes_once(app, tables, store_url):
    entered, go_on = threading.Event(), threading.Event()

    def define(app: Duly):
        @app.task(name="pay", transaction=True)
        def pay() -> int:
            if current().fence == 1:
                entered.set()
                go_on.wait(30)
            write()
            return current().fence

        return pay

    run = define(app).enqueue()
    other = Duly(store_url)
    define(other)
    with app.worker(lease=60, beat=20) as frozen:
        assert entered.wait(20)
        take_over(app, frozen, run.id)
        with other.worker():
            assert run.result(timeout=20) == 2
        go_on.set()
        wait_until_empty(frozen)
    other.close()

    assert rows(tables) == [(run.id, 2)]
    assert run.refresh().result() == 2


@pytest.mark.parametrize(
    "point", ["transaction.before_settle", "transaction.before_commit"], ids=["settle", "commit"]
)
def test_an_error_between_body_and_commit_rolls_all_back(app, tables, point):
    struck = threading.Event()

    def strike() -> None:
        if not struck.is_set():
            struck.set()
            message = "struck"
            raise RuntimeError(message)

    faultpoints.arm(point, strike)

    @app.task(name="pay", transaction=True, retries=Retry(1, base=0.0))
    def pay() -> None:
        write()

    run = pay.enqueue()
    with app.worker():
        run.result(timeout=20)

    assert struck.is_set()
    assert rows(tables) == [(run.id, 2)]


def test_a_constraint_that_speaks_up_is_the_bodys_failure(app, tables):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        write("once")

    first, second = pay.enqueue(), pay.enqueue()
    app.worker(concurrency=1).drain(timeout=20)

    assert {str(first.refresh().state), str(second.refresh().state)} == {"succeeded", "failed"}
    assert tables.rows("SELECT count(*) FROM once") == [(1,)]


def test_a_body_cannot_commit_by_itself(app, tables):
    raised = []

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        write()
        try:
            current().connection.commit()
        except Exception as error:
            raised.append(error)
            raise
        message = "after the commit"
        raise ValueError(message)

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().state == "failed"
    assert rows(tables) == []
    assert raised


def test_a_savepoint_of_the_body_is_no_commit(app, tables):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        connection = current().connection
        if hasattr(connection, "transaction"):  # psycopg's own way
            with connection.transaction():
                write()
        else:
            connection.execute("SAVEPOINT mine")
            write()
            connection.execute("RELEASE mine")
        message = "after the savepoint"
        raise ValueError(message)

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().record.error == "ValueError: after the savepoint"
    assert rows(tables) == []


def test_a_body_that_never_asks_for_its_connection_just_succeeds(app):
    @app.task(name="idle", transaction=True)
    def idle() -> int:
        return 1

    run = idle.enqueue()
    app.worker().drain(timeout=20)

    assert run.result(timeout=5) == 1


def test_only_a_transactional_task_has_a_connection(app):
    @app.task(name="plain")
    def plain() -> None:
        _ = current().connection

    @app.task(name="coroutine")
    async def coroutine() -> None:
        _ = current().connection

    runs = [plain.enqueue(), coroutine.enqueue()]
    app.worker().drain(timeout=20)

    for run in runs:
        assert run.refresh().state == "failed"
        assert BadOption.__name__ in run.record.error
        assert "@app.task(transaction=True)" in run.record.error


def test_others_can_write_while_a_body_computes(app):
    entered, go_on = threading.Event(), threading.Event()

    @app.task(name="compute", transaction=True)
    def compute() -> None:
        entered.set()
        go_on.wait(30)

    with app.worker():
        run = compute.enqueue()
        assert entered.wait(20)
        assert compute.using(delay=60).enqueue().state == "queued"
        go_on.set()
        run.result(timeout=20)


@pytest.mark.stores("sqlite")  # psycopg's `with connection` closes it; sqlite3's only commits.
def test_a_with_block_of_the_connection_does_not_commit_either(app, tables):
    @app.task(name="pay", transaction=True)
    def pay() -> None:
        with current().connection as connection:
            connection.execute("INSERT INTO ledger VALUES ('x', 1)")
        message = "after the block"
        raise ValueError(message)

    run = pay.enqueue()
    app.worker().drain(timeout=20)

    assert run.refresh().state == "failed"
    assert rows(tables) == []


@pytest.mark.stores("sqlite")  # PostgreSQL has many writers: there the act just goes through.
def test_another_write_beside_its_own_transaction_is_refused_and_not_a_deadlock(app, tables):
    @app.task(name="other")
    def other() -> None: ...

    said: list[BaseException] = []
    waiting = threading.Event()

    @app.task(name="pay", transaction=True)
    def pay() -> None:
        write()
        # Somebody else's write is under way and waits for this very transaction.
        blocked = threading.Thread(target=lambda: (waiting.set(), other.enqueue()))
        blocked.start()
        assert waiting.wait(20)
        blocked.join(0.2)
        try:
            app.queues.pause("mail")
        except WouldBlockItself as error:
            said.append(error)

    run = pay.enqueue()
    with app.worker():
        run.result(timeout=20)

    assert len(said) == 1
    assert len(rows(tables)) == 1
