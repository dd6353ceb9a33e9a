"""PostgreSQL only: a beat that is acknowledged is kept after a crash of the server."""

import psycopg
import pytest

from duly.store.store_factory import open_store
from tests.store.conformance.verbs import WORKER, register

pytestmark = [pytest.mark.stores("postgres"), pytest.mark.pgbouncer]


@pytest.fixture
def store(store_url: str):
    """The store, directly and through a pooler that shares its connections."""
    store = open_store(store_url)
    register(store)
    yield store
    store.close()


def test_a_beat_is_flushed_even_if_the_servers_default_is_asynchronous(store, store_url):
    with psycopg.connect(store_url, autocommit=True, prepare_threshold=None) as connection:
        name = connection.execute("SELECT current_database()").fetchone()[0]
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = off")
        connection.execute("CREATE TABLE noted (setting text)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO noted VALUES (current_setting('synchronous_commit')); RETURN new; END $$"
        )
        connection.execute(
            "CREATE TRIGGER note BEFORE UPDATE ON duly_workers FOR EACH ROW EXECUTE FUNCTION note()"
        )
        assert store.heartbeats().beat([WORKER]) == {WORKER}
        assert connection.execute("SELECT DISTINCT setting FROM noted").fetchall() == [("on",)]
