"""Enqueueing in the caller's own transaction, with every supported library."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from django.db import connections, transaction
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly import BadOption, Duly, KeyConflict, wait_for
from duly.errors import StoreRefused
from tests.integrations.django.project import using
from tests.worker.waits import never_poll, wait_until_it_only_listens

SECONDS = 20


def is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


# -- how each library opens a transaction and commits it or rolls it back --


class Caller:
    """A connection of one library, with its commit and rollback."""

    def __init__(self, connection: Any, commit: Callable[[], Any], rollback: Callable[[], Any]):
        self.connection = connection
        self.commit = commit
        self.rollback = rollback


@contextmanager
def by_driver(url: str) -> Iterator[Caller]:
    if is_sqlite(url):
        with closing(sqlite3.connect(path_of(url))) as connection:
            connection.row_factory = lambda _cursor, row: {"whatever": row}
            yield Caller(connection, connection.commit, connection.rollback)
    else:
        raw = psycopg.RawCursor
        with psycopg.connect(url, row_factory=dict_row, cursor_factory=raw) as connection:
            yield Caller(connection, connection.commit, connection.rollback)


@contextmanager
def engine_of(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        yield engine
    finally:
        engine.dispose()


@contextmanager
def by_sqlalchemy(url: str) -> Iterator[Caller]:
    with engine_of(url) as engine, engine.connect() as connection:
        yield Caller(connection, connection.commit, connection.rollback)


@contextmanager
def by_sqlalchemy_session(url: str) -> Iterator[Caller]:
    with engine_of(url) as engine, Session(engine) as session:
        yield Caller(session, session.commit, session.rollback)


@contextmanager
def by_scoped_session(url: str) -> Iterator[Caller]:
    with engine_of(url) as engine:
        session = scoped_session(sessionmaker(engine))
        yield Caller(session, session.commit, session.rollback)
        session.remove()


@contextmanager
def by_django(url: str) -> Iterator[Caller]:
    with django_connection(url) as connection, transaction.atomic(using="caller"):
        point = transaction.savepoint(using="caller")
        yield Caller(
            connection,
            lambda: transaction.savepoint_commit(point, using="caller"),
            lambda: transaction.savepoint_rollback(point, using="caller"),
        )


@contextmanager
def django_connection(url: str) -> Iterator[Any]:
    with using(caller=url):
        yield connections["caller"]


@contextmanager
def by_django_atomic(url: str) -> Iterator[Caller]:
    with django_connection(url) as connection:
        block = transaction.atomic(using="caller")
        block.__enter__()
        yield Caller(
            connection,
            lambda: block.__exit__(None, None, None),
            lambda: block.__exit__(OSError, OSError("no"), None),
        )


SYNC = [by_driver, by_sqlalchemy, by_sqlalchemy_session, by_scoped_session, by_django]


@asynccontextmanager
async def by_async_psycopg(url: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as connection:
        yield Caller(connection, connection.commit, connection.rollback)


@asynccontextmanager
async def by_asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    begun = connection.transaction()
    await begun.start()
    yield Caller(connection, begun.commit, begun.rollback)
    await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1) as pool, pool.acquire() as connection:
        begun = connection.transaction()
        await begun.start()
        yield Caller(connection, begun.commit, begun.rollback)


def async_url(url: str, driver: str) -> str:
    if is_sqlite(url):
        return url.replace("sqlite://", "sqlite+aiosqlite://")
    return url.replace("postgresql://", f"postgresql+{driver}://")


@asynccontextmanager
async def by_async_sqlalchemy(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(async_url(url, "psycopg"))
    async with engine.connect() as connection:
        yield Caller(connection, connection.commit, connection.rollback)
    await engine.dispose()


@asynccontextmanager
async def by_async_session(url: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(async_url(url, "asyncpg"))
    async with AsyncSession(engine) as session:
        yield Caller(session, session.commit, session.rollback)
    await engine.dispose()


WAKING = [by_driver, by_sqlalchemy, by_sqlalchemy_session, by_scoped_session, by_django_atomic]
EVERYWHERE = [by_async_sqlalchemy, by_async_session]
ON_POSTGRES = [by_async_psycopg, by_asyncpg, by_asyncpg_pool]


# -- guarantees --


@pytest.fixture
def send(app: Duly):
    """A task."""

    @app.task(name="send", retries=2)
    def send(order_id: int) -> int:
        return order_id

    app.runs.list()  # Create the tables before any transaction.
    return send


@pytest.fixture
def waiter(app):
    """A run that sleeps until the event `paid`."""

    @app.task(name="waiting")
    def waiting() -> int:
        return wait_for("paid", timeout=3600)

    run = waiting.enqueue()
    app.worker().drain()
    return run


@pytest.mark.parametrize("library", SYNC)
def test_a_run_exists_if_its_transaction_commits(app, send, store_url, library):
    with library(store_url) as caller:
        lost = send.using(connection=caller.connection, key="k", tags={"a": "b"}).enqueue(1)
        caller.rollback()
    assert app.runs.list() == []

    with library(store_url) as caller:
        kept = send.using(connection=caller.connection, key="k", tags={"a": "b"}).enqueue(2)
        later = send.using(connection=caller.connection, delay=3600).enqueue(3)
        caller.commit()

    assert {run.id for run in app.runs.list()} == {kept.id, later.id}
    assert lost.id != kept.id
    assert [run.id for run in app.runs.list(tag=("a", "b"))] == [kept.id]
    app.worker().drain()
    assert kept.result(timeout=SECONDS) == 2
    assert later.refresh().state == "queued"


@pytest.mark.parametrize("library", SYNC)
def test_an_event_is_sent_if_its_transaction_commits(app, waiter, store_url, library):
    with library(store_url) as caller:
        assert app.send_event("paid", 1, connection=caller.connection)
        caller.rollback()
    app.worker().drain()
    assert waiter.refresh().state == "queued"

    with library(store_url) as caller:
        assert app.send_event("paid", 2, connection=caller.connection)
        assert not app.send_event("paid", 3, connection=caller.connection)
        caller.commit()

    app.worker().drain()
    assert waiter.result(timeout=SECONDS) == 2


@pytest.mark.parametrize("library", EVERYWHERE)
def test_an_event_is_sent_on_an_asynchronous_connection(app, waiter, store_url, library):
    asyncio.run(sends(app, library(store_url)))
    app.worker().drain()
    assert waiter.result(timeout=SECONDS) == 2


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("library", ON_POSTGRES)
def test_an_event_is_sent_on_an_asynchronous_driver(app, waiter, store_url, library):
    asyncio.run(sends(app, library(store_url)))
    app.worker().drain()
    assert waiter.result(timeout=SECONDS) == 2


async def sends(app, opened) -> None:
    async with opened as caller:
        assert await app.asend_event("paid", 2, connection=caller.connection)
        await caller.commit()


@pytest.mark.parametrize("library", EVERYWHERE)
def test_a_run_exists_if_its_asynchronous_connection_commits(app, send, store_url, library):
    asyncio.run(check_commit_and_rollback(app, send, library(store_url), library(store_url)))


@pytest.mark.stores("postgres")
@pytest.mark.parametrize("library", ON_POSTGRES)
def test_a_run_exists_if_its_asynchronous_driver_commits(app, send, store_url, library):
    asyncio.run(check_commit_and_rollback(app, send, library(store_url), library(store_url)))


async def check_commit_and_rollback(app, send, first, second) -> None:
    async with first as caller:
        await send.using(connection=caller.connection, key="k").aenqueue(1)
        await caller.rollback()
    assert app.runs.list() == []

    async with second as caller:
        kept = await send.using(connection=caller.connection, key="k").aenqueue(2)
        again = await send.using(connection=caller.connection, key="k").aenqueue(2)
        await caller.commit()

    assert [run.id for run in app.runs.list()] == [kept.id]
    assert again.id == kept.id


@pytest.mark.parametrize("library", SYNC)
def test_a_key_conflict_does_not_abort_the_callers_transaction(app, send, store_url, library):
    first = send.using(key="k").enqueue(1)

    with library(store_url) as caller:
        again = send.using(connection=caller.connection, key="k").enqueue(1)
        with pytest.raises(KeyConflict):
            send.using(connection=caller.connection, key="k").enqueue(2)
        other = send.using(connection=caller.connection).enqueue(3)
        caller.commit()

    assert again.id == first.id
    assert {run.id for run in app.runs.list()} == {first.id, other.id}


def test_a_key_with_unique_active_is_free_after_its_run_ends_in_a_callers_transaction(
    app, send, store_url
):
    first = send.using(key="k", unique="active").enqueue(1)
    app.worker().drain()

    with by_driver(store_url) as caller:
        second = send.using(connection=caller.connection, key="k", unique="active").enqueue(2)
        caller.commit()

    assert second.id != first.id
    assert second.refresh().state == "queued"


def test_a_connection_in_autocommit_mode_writes_a_run_with_its_key_and_tags(app, send, store_url):
    if is_sqlite(store_url):
        connection: Any = sqlite3.connect(path_of(store_url), isolation_level=None)
    else:
        connection = psycopg.connect(store_url, autocommit=True)
    with closing(connection):
        run = send.using(connection=connection, key="k", tags={"a": "b"}).enqueue(1)

    assert [found.id for found in app.runs.list(tag=("a", "b"))] == [run.id]


def test_django_outside_a_transaction_commits_immediately(app, send, store_url):
    with django_connection(store_url) as connection:
        run = send.using(connection=connection, key="k").enqueue(1)

    assert [found.id for found in app.runs.list()] == [run.id]


@pytest.mark.usefixtures(never_poll.__name__)
class TestWakingWorkers:
    """A worker that does not poll starts a run when its transaction has committed."""

    @pytest.fixture
    def begun(self) -> list[int]:
        return []

    @pytest.fixture
    def work(self, app, begun) -> Iterator[Any]:
        """A task, and an idle worker that learns of runs only from hints."""

        @app.task(name="work")
        async def work(number: int) -> int:
            begun.append(number)
            return number

        with app.worker() as worker:
            wait_until_it_only_listens(worker)
            yield work

    @pytest.mark.parametrize("library", WAKING)
    def test_a_worker_starts_a_run_when_a_connection_commits(
        self, app, begun, work, store_url, library
    ):
        with library(store_url) as caller:
            work.using(connection=caller.connection).enqueue(2)
            caller.rollback()
        with library(store_url) as caller:
            run = work.using(connection=caller.connection).enqueue(3)
            seen = app.runs.list(state="queued")
            caller.commit()

            assert run.result(timeout=SECONDS) == 3
        assert seen == []
        assert begun == [3]

    @pytest.mark.parametrize("library", EVERYWHERE)
    def test_a_worker_starts_a_run_when_an_asynchronous_connection_commits(
        self, app, begun, work, store_url, library
    ):
        asyncio.run(self._check_commit_and_rollback(app, begun, work, partial(library, store_url)))

    @pytest.mark.stores("postgres")
    @pytest.mark.parametrize("library", ON_POSTGRES)
    def test_a_worker_starts_a_run_when_an_asynchronous_driver_commits(
        self, app, begun, work, store_url, library
    ):
        asyncio.run(self._check_commit_and_rollback(app, begun, work, partial(library, store_url)))

    async def _check_commit_and_rollback(self, app, begun, work, opened) -> None:
        async with opened() as caller:
            await work.using(connection=caller.connection).aenqueue(2)
            await caller.rollback()
        async with opened() as caller:
            run = await work.using(connection=caller.connection).aenqueue(3)
            seen = app.runs.list(state="queued")
            await caller.commit()

            assert await run.aresult(timeout=SECONDS) == 3
        assert seen == []
        assert begun == [3]


@pytest.mark.stores("sqlite")
def test_a_connection_to_another_file_is_refused(app, send, tmp_path):
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        elsewhere = send.using(connection=other)
        with pytest.raises(StoreRefused, match=r"other\.db.*one file"):
            elsewhere.enqueue(1)
    with closing(sqlite3.connect(":memory:")) as memory:
        nowhere = send.using(connection=memory)
        with pytest.raises(StoreRefused, match="in memory"):
            nowhere.enqueue(1)


@pytest.mark.stores("postgres")
def test_a_connection_to_another_database_is_refused(app, send, servers, store_kind):
    shared = servers.postgres(store_kind)
    url = shared.create_database()
    with closing(Duly(url)) as other, psycopg.connect(url) as connection:
        assert other.runs.list() == []
        with pytest.raises(StoreRefused, match="one database"):
            send.using(connection=connection).enqueue(1)
        connection.rollback()
    shared.drop_database(url)

    assert app.runs.list() == []


@pytest.mark.stores("postgres")
def test_a_connection_to_another_kind_of_database_is_refused(send):
    with closing(sqlite3.connect(":memory:")) as other, pytest.raises(BadOption, match="to sqlite"):
        send.using(connection=other).enqueue(1)


def test_a_value_that_is_not_a_connection_is_refused(send):
    with pytest.raises(BadOption, match=r"takes a connection of sqlite3.*not builtins\.str"):
        send.using(connection="sqlite:///x.db").enqueue(1)


def test_a_blocking_connection_is_refused_on_the_event_loop(send, store_url):
    with by_driver(store_url) as caller, pytest.raises(BadOption, match=r"call enqueue"):
        asyncio.run(send.using(connection=caller.connection).aenqueue(1))


def test_an_asynchronous_connection_is_refused_off_the_event_loop(send, store_url):
    session = AsyncSession(create_async_engine(async_url(store_url, "asyncpg")))

    with pytest.raises(BadOption, match=r"await aenqueue"):
        send.using(connection=session).enqueue(1)


def test_enqueue_many_refuses_calls_with_a_callers_connection(app, send, store_url):
    with by_driver(store_url) as caller, pytest.raises(BadOption, match=r"enqueue_many"):
        app.enqueue_many([send.using(connection=caller.connection).call(1)])
