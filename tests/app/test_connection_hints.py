"""When a commit of the caller sends a hint to the workers, and over which connection."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from duly import BadOption, Duly
from duly.store.hints import ClaimNotice, HintPlace, decode
from duly.store.postgres.wakeup import _HintNotifier
from tests.app.test_connections import async_url, django_connection, engine_of

pytestmark = pytest.mark.stores("postgres")

SECONDS = 20
INSIDE = ""
"""The sender in a NOTIFY of the caller's own transaction. The sender of the process has a name."""


class Undone(Exception):
    """Ends a block so that the block rolls back."""


@pytest.fixture
def task(app: Duly):
    @app.task(name="send")
    def send(number: int) -> int:
        return number

    app.runs.list()  # Create the tables before any transaction.
    return send


class Listener:
    """Receives the hints that reach other processes."""

    def __init__(self, app: Duly, url: str) -> None:
        self._hints = app.store._here().writers.hints
        self._notify = app.store._here().writers._notify
        self._connection = psycopg.connect(url, autocommit=True)
        ((self._channel,),) = self._connection.execute("SELECT duly_channel()").fetchall()
        self._connection.execute(f'LISTEN "{self._channel}"')
        self.process = self._hints.sender
        self.places: list[set[HintPlace]] = []

    def heard(self) -> list[str]:
        """Return the senders of the hints so far.

        A NOTIFY of our own shows that no earlier hint is still pending.
        """
        self._hints._notifier.close()  # Closing sends the pending hints first.
        self._hints._notifier = _HintNotifier(self._notify, self.process)
        self._connection.execute("SELECT pg_notify(%s, 'end')", [self._channel])
        hints = []
        for notify in self._connection.notifies(timeout=SECONDS):
            if notify.payload == "end":
                return hints
            message = decode(notify.payload)
            assert message is not None, notify.payload
            assert not isinstance(message.said, ClaimNotice)
            self.places.append({hint.place for hint in message.said})
            hints.append(message.sender)
        raise AssertionError(f"the listener heard only {hints}")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def listener(app, task, store_url) -> Iterator[Listener]:
    found = Listener(app, store_url)
    yield found
    found.close()


@contextmanager
def django_block(url: str) -> Iterator[Any]:
    with django_connection(url) as connection, transaction.atomic(using="caller"):
        yield connection


@contextmanager
def session_block(url: str) -> Iterator[Any]:
    with engine_of(url) as engine, Session(engine) as session, session.begin():
        yield session


@contextmanager
def scoped_session_block(url: str) -> Iterator[Any]:
    with engine_of(url) as engine:
        session = scoped_session(sessionmaker(engine))
        try:
            with session.begin():
                yield session
        finally:
            session.remove()


BLOCKS = [django_block, session_block, scoped_session_block]


def savepoint(connection: Any) -> Any:
    if hasattr(connection, "begin_nested"):
        return connection.begin_nested()
    return transaction.atomic(using="caller")


@pytest.mark.parametrize("block", BLOCKS)
def test_the_sender_of_the_process_notifies_workers_after_the_commit(
    app, task, listener, store_url, block
):
    with block(store_url) as connection:
        for number in range(3):
            task.using(connection=connection).enqueue(number)
        app.send_event("paid", connection=connection)
        assert listener.heard() == []

    heard = listener.heard()
    assert heard
    assert set(heard) == {listener.process}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_transaction_that_rolls_back_sends_no_hint(app, task, listener, store_url, block):
    with suppress(Undone), block(store_url) as connection:
        task.using(connection=connection).enqueue(1)
        with savepoint(connection):
            app.send_event("paid", connection=connection)
        raise Undone

    assert listener.heard() == []


@pytest.mark.parametrize("block", BLOCKS)
def test_a_savepoint_that_rolls_back_sends_no_hint(task, listener, store_url, block):
    with block(store_url) as connection:
        task.using(connection=connection, wake=False).enqueue(0)
        with suppress(Undone), savepoint(connection):
            task.using(connection=connection).enqueue(1)
            with savepoint(connection):
                task.using(connection=connection).enqueue(2)
            raise Undone

    assert listener.heard() == []


@pytest.mark.parametrize("block", BLOCKS)
def test_a_released_savepoint_sends_no_hint_before_the_commit(task, listener, store_url, block):
    with block(store_url) as connection:
        with savepoint(connection), savepoint(connection):
            task.using(connection=connection).enqueue(1)
        assert listener.heard() == []

    assert listener.heard() == [listener.process]


def test_a_session_that_continues_after_its_commit_sends_a_hint_for_each_transaction(
    task, listener, store_url
):
    with engine_of(store_url) as engine, Session(engine) as session:
        for number in range(2):
            task.using(connection=session).enqueue(number)
            session.commit()
            assert listener.heard() == [listener.process]
        task.using(connection=session).enqueue(2)
        session.rollback()
        session.commit()

    assert listener.heard() == []


def test_django_outside_a_transaction_notifies_workers_immediately(task, listener, store_url):
    with django_connection(store_url) as connection:
        task.using(connection=connection).enqueue(1)

        assert listener.heard() == [listener.process]


def test_django_without_autocommit_sends_the_hint_inside_the_transaction(task, listener, store_url):
    with django_connection(store_url) as connection:
        connection.set_autocommit(False)
        task.using(connection=connection).enqueue(1)
        assert listener.heard() == []
        connection.commit()

        assert listener.heard() == [INSIDE]
        connection.set_autocommit(True)


def test_an_asynchronous_session_notifies_workers_after_its_commit(task, listener, store_url):
    async def main() -> None:
        engine = create_async_engine(async_url(store_url, "psycopg"))
        async with AsyncSession(engine) as session:
            await task.using(connection=session).aenqueue(1)
            await session.rollback()
            await task.using(connection=session).aenqueue(2)
            assert listener.heard() == []
            await session.commit()
        await engine.dispose()

    asyncio.run(main())
    assert listener.heard() == [listener.process]


def test_a_session_that_joins_an_outer_transaction_sends_the_hint_with_its_commit(
    task, listener, store_url
):
    with engine_of(store_url) as engine, engine.connect() as connection:
        with Session(connection, join_transaction_mode="rollback_only") as session:
            connection.begin()
            task.using(connection=session).enqueue(1)
            session.commit()
            assert listener.heard() == []
        connection.commit()

    assert listener.heard() == [INSIDE]


def test_a_driver_connection_sends_the_hint_inside_its_transaction(app, task, listener, store_url):
    with psycopg.connect(store_url) as connection:
        task.using(connection=connection).enqueue(1)
        app.send_event("paid", connection=connection)
        assert listener.heard() == []

    assert set(listener.heard()) == {INSIDE}


@pytest.mark.parametrize("block", [*BLOCKS, psycopg.connect])
def test_a_call_with_wake_false_sends_nothing(app, task, listener, store_url, block):
    with block(store_url) as connection:
        run = task.using(connection=connection, wake=False).enqueue(1)

    assert listener.heard() == []
    app.worker().drain()
    assert run.result(timeout=SECONDS) == 1


def test_a_commit_succeeds_even_if_its_hint_fails(app, task, store_url, monkeypatch):
    def fail(*_ops: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(app.store, "wake", fail)
    with session_block(store_url) as session:
        run = task.using(connection=session).enqueue(1)

    assert run.refresh().state == "queued"


def test_a_call_without_a_connection_refuses_wake_false(task):
    with pytest.raises(BadOption, match="your own connection"):
        task.using(wake=False)


@pytest.mark.parametrize("block", [*BLOCKS, psycopg.connect])
def test_a_hint_of_a_callers_commit_names_queue_lane_and_task(task, listener, store_url, block):
    with block(store_url) as connection:
        task.using(connection=connection, queue="mail").enqueue(1)

    assert len(listener.heard()) == 1
    assert listener.places == [{HintPlace("mail", "thread", "send")}]


@pytest.mark.parametrize("block", [*BLOCKS, psycopg.connect])
def test_a_hint_about_a_run_that_is_not_due_names_no_place(task, listener, store_url, block):
    with block(store_url) as connection:
        task.using(connection=connection, delay=3600).enqueue(1)

    assert len(listener.heard()) == 1
    assert listener.places == [set()]
