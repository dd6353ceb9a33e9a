"""The limit of a transaction in a body: others wait for it, so it ends whatever the body does."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

import duly
from duly import Duly, Retry, Run, current
from duly.errors import TransactionTooLong

LIMIT = 0.2
SOON = 20.0
NOTE = '(in step "book")'
Make = Callable[..., Run[Any]]


@pytest.fixture(params=["step", "astep", "block"])
def enqueue(app: Duly, request: pytest.FixtureRequest) -> Make:
    """Enqueue a task that has a transaction in a step, or for the last part of its body."""

    def enqueue(book: Callable[[], object], **options: Any) -> Run[Any]:
        def plain() -> Any:
            return duly.step("book", book, transaction=True)

        async def coroutine() -> Any:
            return await duly.astep("book", book, transaction=True)

        def block() -> Any:
            with current().transaction():
                return book()

        bodies: dict[str, Callable[[], Any]]
        bodies = {"step": plain, "astep": coroutine, "block": block}
        body = bodies[request.param]
        return app.task(name="order", transaction_limit=LIMIT, **options)(body).enqueue()

    return enqueue


def test_it_is_rolled_back_while_its_function_goes_on(app, tables, enqueue):
    written, late = threading.Event(), threading.Event()

    def book() -> str:
        current().connection.execute("INSERT INTO once VALUES (1)")
        written.set()
        late.wait(SOON)  # Nothing strikes a function that waits.
        return "booked"

    run = enqueue(book)
    with app.worker() as worker:
        assert written.wait(SOON)
        tables.execute("INSERT INTO once VALUES (1)")  # Waits for the lock, or for that row.
        state = run.refresh().state
        late.set()
        worker.stop()

    assert state == "running"
    assert run.refresh().state == "failed"
    assert TransactionTooLong.__name__ in (run.record.error or "")
    assert run.steps() == []
    assert tables.rows("SELECT number FROM once") == [(1,)]


@pytest.mark.pgbouncer
@pytest.mark.parametrize("is_caught", [False, True])
def test_it_ends_a_statement_that_takes_too_long(app, tables, enqueue, is_caught, request):
    endless = (
        "WITH RECURSIVE r(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM r) SELECT max(x) FROM r"
        if "sqlite" in app.url
        else "SELECT pg_sleep(60)"
    )

    def book() -> str:
        current().connection.execute("INSERT INTO once VALUES (1)")
        try:
            current().connection.execute(endless)
        except Exception:
            if not is_caught:
                raise
        return "booked"

    run = enqueue(book)
    app.worker().drain(timeout=SOON)

    assert run.refresh().state == "failed"
    assert TransactionTooLong.__name__ in (run.record.error or "")
    assert request.node.callspec.params["enqueue"] == "block" or NOTE in run.record.traceback
    assert run.steps() == []
    assert tables.rows("SELECT number FROM once") == []


def test_the_next_one_is_as_good_as_new(app, tables, enqueue):
    def book() -> int:
        current().connection.execute(f"INSERT INTO once VALUES ({current().attempt})")  # noqa: S608
        if current().attempt == 1:
            threading.Event().wait(2 * LIMIT)
        return current().attempt

    run = enqueue(book, retries=Retry(1, base=0, on=(TransactionTooLong,)))
    app.worker().drain(timeout=SOON)

    assert run.result(timeout=1) == 2
    assert tables.rows("SELECT number FROM once") == [(2,)]
    assert {step.claim_number for step in run.steps()} <= {2}
