"""A server that crashes while a commit is under way, and uses its transaction number again."""

from contextlib import closing

import psycopg
import pytest

from duly.errors import StoreUnavailable
from duly.store.ops.operators import PauseQueue
from duly.store.postgres.connection import PostgresSession
from duly.store.store_factory import open_store
from tests.servers.postgres import PostgresServer
from tests.store.conformance.verbs import order, register


@pytest.fixture
def url(private_postgres: PostgresServer) -> str:
    """A fresh database on a server that may crash."""
    return private_postgres.create_database()


@pytest.fixture
def store(url: str):
    """A store in it, which has written before."""
    with closing(open_store(url)) as store:
        register(store)
        store.do(order(key="before"))
        yield store


@pytest.fixture
def crash_before_commit(url: str, private_postgres: PostgresServer, monkeypatch):
    """The server crashes before it receives the next COMMIT; others write before we are back."""
    with psycopg.connect(url, autocommit=True) as another:
        another.execute("CREATE TABLE others (id integer)")
    commit_now = PostgresSession.commit_now

    def crash(session: PostgresSession) -> None:
        monkeypatch.setattr(PostgresSession, "commit_now", commit_now)
        private_postgres.kill9()
        private_postgres.start()
        with psycopg.connect(url, autocommit=True) as another:
            for number in range(10):
                another.execute("INSERT INTO others VALUES (%s)", (number,))
        commit_now(session)

    monkeypatch.setattr(PostgresSession, "commit_now", crash)


def test_an_enqueue_that_is_acknowledged_was_not_taken_back_by_a_crash(store, crash_before_commit):
    op = order(key="k")

    answer = store.do(op)

    assert (answer.run_id, answer.new) == (op.run_id, True)
    assert store.get_run(op.run_id) is not None


def test_an_op_that_a_crash_may_have_taken_back_is_not_acknowledged(store, crash_before_commit):
    with pytest.raises(StoreUnavailable, match="is unknown"):
        store.do(PauseQueue("default", True, "me", ""))
