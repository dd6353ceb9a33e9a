"""PostgreSQL only: roles and their defaults, schemas, addresses, and poolers."""

import threading
import traceback
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from duly.errors import StoreError, StoreReadOnly, StoreRefused, StoreUnavailable
from duly.store.ops.runs import Settled
from duly.store.postgres.address import Address
from duly.store.postgres.arrays import optional_texts, texts
from duly.store.postgres.connection import PostgresSession, connect
from duly.store.postgres.failures import translated
from duly.store.postgres.session_settings import HOT
from duly.store.store_factory import open_store
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import database_of
from tests.store.conformance.verbs import (
    TIMEOUT,
    WORKER,
    accept,
    claim,
    claimed_ids,
    enqueue_many,
    enqueue_one,
    order,
    recover,
    register,
    succeed,
    success,
    tick,
)


@pytest.fixture
def connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection of the application to the same database."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        yield connection


# -- roles, settings, schemas --


def with_options(url: str, options: str) -> str:
    """Return the address of a session with other defaults."""
    return f"{url}?options={options.replace(' ', '%20').replace('=', '%3D')}"


def test_defaults_of_the_server_do_not_weaken_a_session(url, store):
    weak = "-c synchronous_commit=off -c default_transaction_isolation=serializable"
    other_url = with_options(url, weak)
    with closing(open_store(other_url)) as other:
        address = Address(other_url)
        with closing(connect(address, HOT)) as session:
            settings = [
                session.execute(f"SHOW {name}").fetchone()[0]
                for name in ("synchronous_commit", "default_transaction_isolation")
            ]
        run_id = enqueue_one(other)

        assert settings == ["on", "read committed"]
        assert claimed_ids(other) == [run_id]


def test_a_database_that_cannot_be_written_raises_an_error(url, store):
    read_only = with_options(url, "-c default_transaction_read_only=on")
    with closing(open_store(read_only)) as other:
        with pytest.raises(StoreReadOnly, match="primary"):
            enqueue_one(other)
        assert other.list_queues() == []


def test_stores_in_two_schemas_of_a_database_are_independent(url, store, connection):
    connection.execute("CREATE SCHEMA annex")
    in_annex = with_options(url, "-c search_path=annex")
    with closing(open_store(in_annex)) as annex:
        register(annex)
        woken = threading.Event()
        end = annex.listen(woken.set)
        assert woken.wait(TIMEOUT)
        woken.clear()
        here, there = enqueue_one(store), enqueue_one(annex)

        assert claimed_ids(store) == [here]
        assert claimed_ids(annex) == [there]
        end()


@pytest.fixture
def url_of_a_role_that_becomes_another(url, store, connection) -> Iterator[str]:
    """The same database, for a login role that works as another role, as vaults set it up."""
    name = database_of(url)
    login, owner = f"{name}_login", f"{name}_owner"
    connection.execute(f"CREATE ROLE {owner} NOLOGIN")
    connection.execute(f"CREATE ROLE {login} LOGIN IN ROLE {owner}")
    connection.execute(f"ALTER ROLE {login} SET role TO {owner}")
    connection.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {owner}")
    connection.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {owner}")
    yield (
        urlsplit(url)._replace(netloc=f"{login}@{urlsplit(url).netloc.rpartition('@')[2]}").geturl()
    )
    connection.execute(f"DROP OWNED BY {owner}, {login}")
    connection.execute(f"DROP ROLE {login}, {owner}")


def test_a_login_role_that_works_as_another_can_end_its_lost_session(
    url_of_a_role_that_becomes_another, store, connection
):
    with closing(open_store(url_of_a_role_that_becomes_another)) as other:
        enqueue_one(other)
        line = other._here().writers._lines["work"]

        def hang_up(session: PostgresSession, lost: bool) -> list[Any]:  # noqa: FBT001 - as `run` calls it
            if not lost:
                pids.append(session.pid)
                session.pgconn.send_query(b"SELECT pg_sleep(60)")
                session.close()
                raise psycopg.OperationalError
            return session.execute("SELECT current_user::text, session_user::text").fetchall()

        pids: list[int] = []
        ((current, login),) = line.run(hang_up)

        assert current != login
        alive = "SELECT 1 FROM pg_stat_activity WHERE pid = ANY (%s)"
        assert connection.execute(alive, [pids]).fetchall() == []
        assert enqueue_one(other) in claimed_ids(store)


def test_a_database_of_another_encoding_is_refused(postgres_server):
    name = "duly_latin1"
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as administrator:
        administrator.execute(f"DROP DATABASE IF EXISTS {name}")
        administrator.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'LATIN1'")
    try:
        with pytest.raises(StoreRefused, match="UTF8"):
            open_store(postgres_server.url(name))
    finally:
        postgres_server.drop_database(postgres_server.url(name))


# -- the contents of errors --

SECRET = "s3cr3t/w@rd"  # noqa: S105 - a canary
ENCODED = "s3cr3t%2Fw%40rd"


def all_texts_of(error: BaseException) -> str:
    """Return all texts of an error that a log could contain."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://app:{secret}@127.0.0.1:1/shop", StoreUnavailable),
        ("postgresql://app:{secret}@host.invalid/shop", StoreUnavailable),
        ("postgresql://app:{secret}@[127.0.0.1:1/shop", StoreRefused),
        ("postgresql://app:{secret}@127.0.0.1:1/shop?nonsense=1", StoreRefused),
        ("postgresql://app@127.0.0.1:1/shop?password={secret}", StoreUnavailable),
        ("postgresql://app:{secret}@127.0.0.1:none/shop", StoreRefused),
    ],
)
def test_the_error_of_an_unreachable_address_does_not_contain_its_password(address, expected):
    with pytest.raises(expected) as caught:
        open_store(address.format(secret=ENCODED))

    said = all_texts_of(caught.value)
    assert SECRET not in said
    assert ENCODED not in said


def test_the_error_of_a_refused_role_or_database_does_not_contain_the_password(postgres_server):
    place = postgres_server.url("shop").partition("@")[2]
    for address in (
        f"postgresql://nobody:{ENCODED}@{place}",
        f"postgresql://duly:{ENCODED}@{place}",
    ):
        with pytest.raises(StoreRefused, match="does not exist") as caught:
            open_store(address)
        assert SECRET not in all_texts_of(caught.value)


def test_the_shown_address_has_no_password(postgres_server, url):
    with closing(open_store(url.replace("duly@", f"duly:{ENCODED}@"))) as store:
        assert store.shown_url == url.replace("duly@", "duly:***@")
        with pytest.raises(StoreError) as caught:
            store.do(order(run_id="no uuid"))
        assert SECRET not in all_texts_of(caught.value)
        assert "duly:***@" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (f"postgres://ann:{ENCODED}@h/shop?sslmode=require", "postgresql://ann:***@h/shop"),
        (
            f"postgresql://?dbname=shop&user=ann&password={ENCODED}&host=h",
            "postgresql://ann:***@h/shop",
        ),
        ("postgresql://ann@h,i:5433/shop", "postgresql://ann@h,i:5433/shop"),
        ("postgresql://ann@[::1]:5432/shop", "postgresql://ann@[::1]:5432/shop"),
        ("postgresql://[::1]:5432/shop", "postgresql://[::1]:5432/shop"),
        ("postgresql:///shop?host=/run/pg", "postgresql:///run/pg/shop"),
    ],
)
def test_an_address_is_shown_in_one_form_however_it_is_written(given, shown):
    assert Address(given).shown_url == shown


def test_a_refused_row_is_told_without_its_values(url):
    with psycopg.connect(url) as session:
        session.execute("CREATE TEMP TABLE notes (note text CHECK (length(note) < 3))")
        with pytest.raises(psycopg.errors.CheckViolation) as caught:
            session.execute("INSERT INTO notes VALUES (%s)", [SECRET])

    refused = translated(caught.value, Address(url))

    assert "notes_note_check" in str(refused)
    assert SECRET not in str(refused)


# -- poolers --


@contextmanager
def opened_through(bouncer: PgBouncer) -> Iterator[Any]:
    url = bouncer.create_database()
    try:
        with closing(open_store(url)) as store:
            register(store)
            yield store
    finally:
        bouncer.drop_database(url)


def test_every_state_of_a_run_is_reached_through_a_pooler(pgbouncer: PgBouncer):
    with opened_through(pgbouncer) as store:
        plain, keyed = enqueue_one(store), enqueue_one(store, key="k")
        enqueue_many(store, 3, delay_seconds=60)
        held = claim(store)
        section = store.task_transaction()
        section.connection.execute("CREATE TABLE ledger (id integer)")
        done = section.settle_and_commit(success(held[0]))

        assert [claimed.run_id for claimed in held] == [plain, keyed]
        assert done is Settled.DONE
        assert succeed(store, held[1]) is Settled.DONE
        assert accept(store, key="k").run_id == keyed
        assert store.heartbeats().beat([WORKER]) == {WORKER}
        assert tick(store).next_due_in is not None
        assert recover(store) == []
        assert any("pooler" in notice for notice in store.notices)


def test_a_listener_through_a_pooler_hears_its_own_process_and_can_stop(pgbouncer: PgBouncer):
    with opened_through(pgbouncer) as store:
        woken = threading.Event()
        end = store.listen(woken.set)

        enqueue_one(store)

        assert woken.wait(TIMEOUT)
        assert not store.hears_hints()
        end()


# -- texts --

WORDS = [
    "",
    "NULL",
    "null",
    "a,b",
    '"quoted"',
    "back\\slash\\",
    "{braces}",
    " blank ",
    "é\n\t",
    "😀",
]


def test_text_columns_are_returned_unchanged(connection):
    assert connection.execute("SELECT %s::text[]", [texts(WORDS)]).fetchone() == (WORDS,)


def test_columns_keep_missing_values(connection):
    mixed = [None, *WORDS, None]

    assert connection.execute("SELECT %s::text[]", [optional_texts(mixed)]).fetchone() == (mixed,)
    assert optional_texts([None, None]) is None
    assert texts([]) == "{}"


def test_a_text_with_a_nul_is_refused_before_it_shifts_a_column():
    with pytest.raises(StoreError, match="NUL"):
        texts(["a\0b", "c"])


# -- the doctor: other roles that may create functions --


@pytest.fixture
def stranger(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session that has created another role. The role is dropped afterwards."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute("CREATE ROLE doctors_stranger LOGIN")
        yield connection
        connection.execute("DROP OWNED BY doctors_stranger; DROP ROLE doctors_stranger")


def test_the_doctor_names_roles_that_may_create_functions_in_the_schema_of_duly(store, stranger):
    stranger.execute("GRANT CREATE ON SCHEMA public TO doctors_stranger")

    (finding,) = [each for each in store.diagnose() if each.check == "schema"]

    assert finding.level == "warning"
    assert "doctors_stranger" in finding.text
    assert finding.remedy.startswith("REVOKE CREATE ON SCHEMA")


def test_the_doctor_accepts_roles_that_may_only_use_the_schema(store, stranger):
    (finding,) = [each for each in store.diagnose() if each.check == "schema"]

    assert finding.level == "ok"


# -- the doctor: transactions that stay open --


def test_the_doctor_names_the_session_whose_transaction_is_open_for_too_long(
    url, store, monkeypatch
):
    monkeypatch.setattr("duly.core.record._LONG_SECONDS", -1)
    with closing(psycopg.connect(url, application_name="nightly report")) as other:
        other.execute("SELECT count(*) FROM duly_runs")

        found = [each for each in store.diagnose() if each.check == "open transactions"]

        (finding,) = found
        assert finding.level == "warning"
        assert f"session {other.info.backend_pid} " in finding.text
        assert "'nightly report'" in finding.text
        assert f"pg_terminate_backend({other.info.backend_pid})" in finding.remedy


def test_a_transaction_that_slows_claims_is_reported_much_earlier_than_others(url, store):
    with closing(psycopg.connect(url, application_name="nightly report")) as other:
        other.execute("SELECT count(*) FROM duly_runs")
        pid = other.info.backend_pid
        before = store.find_oldest_transaction()
        with psycopg.connect(url) as connection:
            connection.execute(
                "INSERT INTO duly_looks (looked_at, until)"
                " VALUES (duly_now(), duly_now() + interval '1 minute')"
            )

        oldest = store.find_oldest_transaction()

    assert (before.pid, before.application) == (pid, "nightly report")
    assert not before._replace(seconds=60.0).is_too_long()
    assert oldest._replace(seconds=60.0).is_too_long()


def test_the_doctor_accepts_sessions_without_an_open_transaction(url, store):
    with closing(psycopg.connect(url, autocommit=True)) as other:
        other.execute("SELECT count(*) FROM duly_runs")

        found = {each.check: each.level for each in store.diagnose()}

    assert found["open transactions"] == "ok"
