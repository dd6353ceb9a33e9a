"""A server that crashes during a commit, and then uses the transaction's number again."""

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
    """A store in the database, which has written before."""
    with closing(open_store(url)) as store:
        register(store)
        store.do(order(key="before"))
        yield store


@pytest.fixture
def crash_before_commit(url: str, private_postgres: PostgresServer, monkeypatch):
    """Crash the server before it receives the next COMMIT. Others write before we connect again."""
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


def test_an_acknowledged_enqueue_was_not_undone_by_a_crash(store, crash_before_commit):
    op = order(key="k")

    answer = store.do(op)

    assert (answer.run_id, answer.new) == (op.run_id, True)
    assert store.get_run(op.run_id) is not None


def test_an_op_that_a_crash_may_have_undone_is_not_acknowledged(store, crash_before_commit):
    with pytest.raises(StoreUnavailable, match="is unknown"):
        store.do(PauseQueue("default", True, "me", ""))
