"""PostgreSQL only: the state of a session after a body has used it."""

import uuid

import psycopg
import pytest

from duly.store.ops.runs import Settled
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import enqueue_and_claim, register, success

pytestmark = [pytest.mark.stores("postgres"), pytest.mark.pgbouncer]

STATE = """
SELECT current_user::text, current_setting('work_mem'),
       (SELECT count(*)::int FROM pg_cursors WHERE is_holdable),
       (SELECT count(*)::int FROM pg_prepared_statements WHERE from_sql),
       (SELECT count(*)::int FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
       (SELECT count(*)::int FROM pg_listening_channels())
"""


@pytest.fixture
def store(store_url: str):
    """The store, directly and through a pooler that shares its connections."""
    store = open_store(store_url)
    register(store)
    yield store
    store.close()


@pytest.fixture
def role(store, store_url: str):
    """A role that may read and write all tables."""
    name = f"tenant_{uuid.uuid4().hex}"
    with psycopg.connect(store_url, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(f"CREATE ROLE {name} IN ROLE pg_read_all_data, pg_write_all_data")
        yield name
        connection.execute(f"DROP ROLE {name}")


def leave_state(connection, role: str) -> None:
    """Change all state of a session that lasts longer than a transaction."""
    connection.execute("SET work_mem = '12345kB'")
    connection.execute("DECLARE held CURSOR WITH HOLD FOR SELECT 1")
    connection.execute("PREPARE mine AS SELECT 1")
    connection.execute("SELECT pg_advisory_lock(4711)")
    connection.execute("LISTEN mine")
    connection.execute(f"SET ROLE {role}")


@pytest.mark.parametrize("ending", ["committed", "rolled back", "failed"])
def test_a_body_finds_no_session_state_of_the_body_before(store, role, ending):
    first = store.task_transaction()
    before = first.connection.execute(STATE).fetchone()
    first.rollback()
    held = enqueue_and_claim(store)
    section = store.task_transaction()
    leave_state(section.connection, role)

    if ending == "committed":
        assert section.settle_and_commit(success(held)) is Settled.DONE
    else:
        if ending == "failed":
            with pytest.raises(psycopg.errors.DivisionByZero):
                section.connection.execute("SELECT 1 / 0")
        section.rollback()

    for _ in range(3):
        following = store.task_transaction()
        assert following.connection.execute(STATE).fetchone() == before
        following.rollback()


def test_statements_that_the_driver_prepared_are_kept_after_a_body(store):
    if store.is_pooled:
        pytest.skip("nothing is prepared through a pooler")
    counts = []
    for _ in range(8):
        section = store.task_transaction()
        counts.append(
            section.connection.execute(
                "SELECT count(*)::int FROM pg_prepared_statements WHERE NOT from_sql", prepare=True
            ).fetchone()[0]
        )
        assert section.settle_and_commit(success(enqueue_and_claim(store))) is Settled.DONE

    assert counts[-1] > 1


@pytest.mark.parametrize(
    "setting",
    [
        "SET search_path TO nowhere",
        "SET LOCAL search_path TO nowhere",
        "SET ROLE {powerless}",
        "SET LOCAL ROLE {powerless}",
    ],
)
def test_the_end_of_a_body_is_recorded_with_any_search_path_or_role(store, powerless, setting):
    held = enqueue_and_claim(store)
    section = store.task_transaction()
    section.connection.execute(setting.format(powerless=powerless))

    assert section.settle_and_commit(success(held)) is Settled.DONE


@pytest.fixture
def powerless(store_url: str):
    """A role that may do nothing."""
    name = f"tenant_{uuid.uuid4().hex}"
    with psycopg.connect(store_url, autocommit=True, prepare_threshold=None) as connection:
        connection.execute(f"CREATE ROLE {name}")
        yield name
        connection.execute(f"DROP ROLE {name}")
