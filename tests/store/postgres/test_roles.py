"""The roles that the how-to "Deploying" creates can do their work, and no more."""

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from duly import Duly
from duly.errors import QueueFull, StoreRefused
from duly.guard import Guard
from duly.store.ops.runs import EnqueueAgain
from duly.store.store_factory import open_store
from tests.docs.pages import DOCS, blocks
from tests.store.conformance.verbs import order
from tests.store.postgres.verbs import InBackground, wait_for_a_lock

CREATE, GRANT = [
    block.text for block in blocks(DOCS / "how-to/deploying.md") if block.kind == "sql"
]
ROLES = ("duly_owner", "duly_worker", "duly_enqueuer", "duly_viewer")


@pytest.fixture
def address_of(url: str) -> Iterator[Callable[[str], str]]:
    """Return a function that gives the address of a migrated database for a role."""

    def address(role: str) -> str:
        return url.replace("//duly@", f"//{role}@")

    with closing(psycopg.connect(url, autocommit=True)) as connection:
        try:
            connection.execute(CREATE)
            open_store(address("duly_owner")).close()
            with psycopg.connect(address("duly_owner")) as owner:
                owner.execute(GRANT)
            yield address
        finally:
            for role in ROLES:
                connection.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


def app_of(address: str) -> Duly:
    """Return an application with one task."""
    app = Duly(address)
    app.task(name="shop:add")(add)
    return app


def enqueue(app: Duly, **options: Any) -> Any:
    """Enqueue the task of the application."""
    return app.task(name="shop:add")(add).using(**options).enqueue(1, 2)


def test_a_worker_runs_the_runs_of_an_enqueuer(address_of):
    with (
        closing(app_of(address_of("duly_enqueuer"))) as web,
        closing(app_of(address_of("duly_worker"))) as back,
    ):
        runs = [
            enqueue(web),
            enqueue(web, key="order 1", tags={"shop": "berlin"}),
            enqueue(web, key="order 1"),
            enqueue(web, delay=60),
        ]
        with psycopg.connect(address_of("duly_enqueuer")) as connection:
            runs.append(enqueue(web, connection=connection, key="order 2"))

        back.worker().drain(timeout=30)

        states = [back.runs.get(run.id).state for run in runs]
        assert states == ["succeeded", "succeeded", "succeeded", "queued", "succeeded"]


def test_an_enqueue_into_a_full_queue_is_refused_for_an_enqueuer(address_of):
    with (
        closing(app_of(address_of("duly_enqueuer"))) as web,
        closing(app_of(address_of("duly_worker"))) as back,
    ):
        back.queues.limit("default", max_size=1)
        enqueue(web)

        with pytest.raises(QueueFull):
            enqueue(web)


def test_an_enqueuer_may_repeat_an_enqueue_whose_reply_was_lost(address_of):
    again = EnqueueAgain(*order())
    with closing(app_of(address_of("duly_enqueuer"))) as web:
        accepted = [web.store.apply([again]) for _ in range(2)]

        assert accepted[0] == accepted[1]
        with psycopg.connect(address_of("duly_worker")) as connection:
            ids = connection.execute("SELECT id::text FROM duly_runs").fetchall()
    assert ids == [(again.run_id,)]


def test_an_enqueuer_gets_the_run_of_a_key_that_another_one_takes_meanwhile(url, address_of):
    with (
        closing(app_of(address_of("duly_enqueuer"))) as web,
        closing(app_of(address_of("duly_enqueuer"))) as other,
        psycopg.connect(address_of("duly_enqueuer")) as connection,
    ):
        first = enqueue(other, connection=connection, key="order 3")
        second = InBackground(lambda: enqueue(web, key="order 3"))
        wait_for_a_lock(url, what="the second one waits for the first one's transaction")
        connection.commit()

        assert second.answer().id == first.id


def test_a_worker_guards_keys(address_of):
    with closing(Guard(address_of("duly_worker"))) as guard:
        with guard.once("payment 1") as claim:
            claim.done("paid")

        with guard.once("payment 1") as claim:
            assert (claim.first, claim.result) == (False, "paid")


@pytest.mark.parametrize(
    "statement",
    [
        "SELECT arguments FROM duly_runs",
        "SELECT arguments FROM duly_every_run",
        "SELECT result FROM duly_history",
        "UPDATE duly_runs SET state = 'queued'",
        "DELETE FROM duly_runs",
        "INSERT INTO duly_history DEFAULT VALUES",
        "CREATE FUNCTION duly.mine() RETURNS integer LANGUAGE sql RETURN 1",
    ],
)
@pytest.mark.parametrize("role", ["duly_enqueuer", "duly_viewer"])
def test_enqueuers_and_viewers_can_neither_read_arguments_nor_change_runs(
    address_of, role, statement
):
    with (
        psycopg.connect(address_of(role)) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute(statement)


def test_a_viewer_sees_runs_and_cannot_enqueue(address_of):
    with (
        closing(app_of(address_of("duly_worker"))) as back,
        closing(app_of(address_of("duly_viewer"))) as viewer,
    ):
        enqueue(back)

        with psycopg.connect(address_of("duly_viewer")) as connection:
            rows = connection.execute("SELECT task, state FROM duly_every_run").fetchall()
            connection.execute("SELECT * FROM duly_queues CROSS JOIN duly_workers")
        with pytest.raises(StoreRefused, match="permission denied"):
            enqueue(viewer)

    assert rows == [("shop:add", "queued")]


def test_a_worker_cannot_change_the_tables(address_of):
    with (
        psycopg.connect(address_of("duly_worker")) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("ALTER TABLE duly_runs ADD COLUMN mine integer")
