"""PostgreSQL only: a body that forbids itself to write fails; its server is not taken for away."""

import pytest

from duly import current, step
from duly.errors import RunFailed

pytestmark = pytest.mark.stores("postgres")

SESSION = "SET default_transaction_read_only = on"
TRANSACTION = "SET TRANSACTION READ ONLY"


@pytest.mark.parametrize("statement", [SESSION, TRANSACTION, f"{SESSION}; {TRANSACTION}"])
def test_a_body_that_sets_read_only_and_raises_has_failed(app, statement):
    @app.task(name="body", transaction=True)
    def body() -> None:
        current().connection.execute(statement)
        raise ValueError("its own error")

    run = body.enqueue()
    app.worker().drain(timeout=60)

    with pytest.raises(RunFailed, match="its own error"):
        run.result(timeout=5)
    assert run.refresh().record.attempt == 1
    assert app.store._address.epoch.number == 0


@pytest.mark.parametrize("statement", [TRANSACTION, f"{SESSION}; {TRANSACTION}"])
@pytest.mark.parametrize("part", ["body", "block", "step"])
def test_a_transaction_that_was_made_read_only_cannot_complete_its_run(app, statement, part):
    @app.task(name="body", transaction=part == "body")
    def body() -> None:
        if part == "step":
            step("one", lambda: current().connection.execute(statement) and None, transaction=True)
        elif part == "block":
            with current().transaction() as connection:
                connection.execute(statement)
        else:
            current().connection.execute(statement)

    run = body.enqueue()
    app.worker().drain(timeout=60)

    with pytest.raises(RunFailed, match="task made its transaction read-only"):
        run.result(timeout=5)
    assert app.store._address.epoch.number == 0


def test_a_body_that_sets_its_session_read_only_completes_and_the_next_one_writes(app, tables):
    @app.task(name="body", transaction=True)
    def body() -> None:
        current().connection.execute(SESSION)

    @app.task(name="writes", transaction=True)
    def writes() -> None:
        current().connection.execute("INSERT INTO once VALUES (1)")

    for task in (body, writes):
        run = task.enqueue()
        app.worker(concurrency=1).drain(timeout=60)
        run.result(timeout=5)

    assert tables.rows("SELECT number FROM once") == [(1,)]
    assert app.store._address.epoch.number == 0
