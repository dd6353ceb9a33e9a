"""What only PostgreSQL has: many writers, callers' transactions, sessions, roles, poolers.

What both databases promise is tested once for both, in `conformance`.
"""

import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from duly.errors import (
    StoreError,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from duly.store.opening import open_store
from duly.store.postgres import pulse, writers
from duly.store.postgres.claim import SQL as CLAIM
from duly.store.postgres.connection import HOT, connect
from duly.store.protocol import (
    AddLogs,
    Enqueue,
    HandBackUnknown,
    RecoverOrphans,
    Settled,
)
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresEndpoint, PostgresServer
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    LANE,
    OTHER_WORKER,
    TASK,
    TIMEOUT,
    WORKER,
    accept,
    cancel,
    claim,
    claim_one,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    key,
    lost,
    order,
    recover,
    register,
    state_of,
    succeed,
    success,
    tick,
)


@pytest.fixture
def url(postgres_server: PostgresEndpoint) -> Iterator[str]:
    """A fresh database."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    """A store in it, with a live worker."""
    with closing(open_store(url)) as store:
        register(store)
        yield store


@pytest.fixture
def connection(url: str, store: Any) -> Iterator[psycopg.Connection[Any]]:
    """A connection of somebody else's to the same database, in transactions of its own."""
    with closing(psycopg.connect(url)) as connection:
        yield connection


class InBackground:
    """Something done in a thread, whose end a test can wait for."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self._answer: Any = None
        self._error: BaseException | None = None
        self._action = action
        self._thread = threading.Thread(target=self._act)
        self._thread.start()

    def answer(self) -> Any:
        self._thread.join(TIMEOUT)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self._answer

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    def _act(self) -> None:
        try:
            self._answer = self._action()
        except BaseException as error:  # noqa: BLE001 - raised again in the test's own thread
            self._error = error


def wait_for_a_lock(url: str, *, what: str) -> None:
    """Return when some session of this database waits for another one's lock."""
    waiting = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        wait_until(
            lambda: connection.execute(waiting).fetchone() != (0,), seconds=TIMEOUT, what=what
        )


# -- rule 5: claim and recover cannot pass each other --


def claim_without_commit(connection: psycopg.Connection[Any]) -> list[str]:
    """Do what a claim does, up to its commit."""
    place = {
        "worker_id": WORKER,
        "after_queue": "",
        "queues": None,
        "lanes": [LANE],
        "limits": [10],
        "tasks": [TASK],
        "last": 0,
    }
    assert connection.execute(CLAIM["is_live"], place).fetchone() == (1,)
    return [row[0] for row in connection.execute(CLAIM["take"], place).fetchall()]


def test_recovery_waits_for_a_claim_under_way_and_takes_its_runs(url, store, connection):
    wanted = enqueue_many(store, 3)
    claimed = claim_without_commit(connection)

    recovery = InBackground(lambda: recover(store))
    wait_for_a_lock(url, what="recovery waits for the claim")
    still_running = not recovery.is_done
    connection.commit()

    assert still_running
    assert sorted(claimed) == sorted(wanted)
    assert sorted(recovery.answer()) == sorted(wanted)
    assert {state_of(store, run_id) for run_id in wanted} == {"queued"}


def test_a_claim_that_rolls_back_leaves_recovery_nothing(url, store, connection):
    run_id = enqueue_one(store)
    claim_without_commit(connection)

    recovery = InBackground(lambda: recover(store))
    wait_for_a_lock(url, what="recovery waits for the claim")
    connection.rollback()

    assert recovery.answer() == []
    assert state_of(store, run_id) == "queued"


def test_a_claim_behind_a_recovery_takes_nothing(url, store):
    held = enqueue_and_claim(store)
    enqueue_one(store)
    judging, judged = threading.Event(), threading.Event()

    def judge(run):
        judging.set()
        assert judged.wait(TIMEOUT)
        return lost(run)

    with closing(open_store(url)) as other:
        recovery = InBackground(lambda: recover(other, judge=judge))
        assert judging.wait(TIMEOUT)
        late_claim = InBackground(lambda: claim(store))
        wait_for_a_lock(url, what="the claim waits for recovery")
        judged.set()

        assert late_claim.answer() == []
        assert recovery.answer() == [held.run_id]


def test_two_claims_at_once_share_the_runs_and_lock_no_more_than_they_take(store, connection):
    enqueue_many(store, 30)
    register(store, OTHER_WORKER)
    first = claim_without_commit(connection)

    second = claimed_ids(store, 100, worker=OTHER_WORKER)
    connection.commit()

    assert len(first) == 10
    assert len(second) == 20
    assert not set(first) & set(second)


def test_orphans_that_somebody_else_recovers_are_left_to_him(store, connection):
    held = enqueue_and_claim(store)
    connection.execute("DELETE FROM duly_workers")
    connection.commit()
    connection.execute("SELECT 1 FROM duly_runs WHERE id = %s FOR UPDATE", [held.run_id])

    while_locked = store.apply([RecoverOrphans(lost, 10)])[0]
    connection.rollback()

    assert while_locked == []
    assert store.apply([RecoverOrphans(lost, 10)])[0] == [held.run_id]


# -- rule 13: a caller's open transaction delays nobody --


def enqueue_in(connection: psycopg.Connection[Any], store: Any, op: Enqueue) -> tuple[Any, ...]:
    """Enqueue on a connection of the caller's."""
    statement = store.enqueue_statement(op)
    return connection.execute(statement.sql, statement.parameters).fetchone()


def test_an_open_transaction_with_a_key_holds_up_nothing_else(store, connection):
    """Everything below happens while it is open; whatever waited for it would never end."""
    running = enqueue_and_claim(store, key="running")
    mine = order(key="mine")
    assert enqueue_in(connection, store, mine) == (mine.run_id, True, False)
    known = enqueue_in(connection, store, order(key="running"))
    enqueue_in(connection, store, order())

    unkeyed = enqueue_many(store, 2)
    keyed = enqueue_one(store, key="other")
    together = store.apply([order(key="third"), order()])
    settled = succeed(store, running)
    found = claimed_ids(store)
    ticked = tick(store)
    connection.rollback()

    assert known == (running.run_id, False, False)
    assert settled is Settled.DONE
    assert sorted(found) == sorted([*unkeyed, keyed, *(answer.run_id for answer in together)])
    assert ticked.promoted == 0
    assert store.get_run(mine.run_id) is None


@pytest.mark.parametrize("ends_by", ["commit", "rollback"])
def test_the_same_key_waits_for_the_transaction_that_takes_it(store, connection, ends_by):
    theirs, ours = order(key="k"), order(key="k")
    enqueue_in(connection, store, theirs)

    waiting = InBackground(lambda: store.apply([ours, order()]))
    enqueue_one(store, key="another")
    still_waiting = not waiting.is_done
    getattr(connection, ends_by)()
    accepted = waiting.answer()[0]

    assert still_waiting
    if ends_by == "commit":
        assert (accepted.run_id, accepted.new) == (theirs.run_id, False)
    else:
        assert (accepted.run_id, accepted.new) == (ours.run_id, True)
    assert len(claimed_ids(store)) == 3


def test_an_event_loop_is_answered_too_when_a_key_was_held(store, connection):
    theirs = order(key="k")
    enqueue_in(connection, store, theirs)
    answered = threading.Event()
    answers: list[Any] = []

    def done(answer):
        answers.append(answer)
        answered.set()

    store.submit([order(key="k"), order()], done)
    assert not answered.wait(0.05)
    connection.commit()

    assert answered.wait(TIMEOUT)
    assert answers[0][0].run_id == theirs.run_id


def test_a_key_that_is_held_for_too_long_is_named(store, connection, monkeypatch):
    monkeypatch.setattr(writers, "HELD_KEY_SECONDS", 0.1)
    enqueue_in(connection, store, order(key="invoice-7"))

    with pytest.raises(StoreUnavailable, match=r"'invoice-7'.*open"):
        store.apply([order(key="invoice-7")])

    connection.rollback()
    assert accept(store, key="invoice-7").new


def test_a_taken_key_does_not_abort_the_callers_transaction(store, connection):
    first = enqueue_one(store, key="k")
    connection.execute("CREATE TABLE orders (id integer)")

    same = enqueue_in(connection, store, order(key="k"))
    other = enqueue_in(connection, store, order(key=key("k", fingerprint="other")))
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.commit()

    assert same == (first, False, False)
    assert other == (first, False, True)
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)


def test_a_run_of_the_callers_exists_if_and_only_if_its_transaction_commits(store, connection):
    kept, dropped = order(tags={"a": "b"}), order(tags={"a": "b"}, key="k")
    enqueue_in(connection, store, kept)
    connection.commit()
    enqueue_in(connection, store, dropped)
    connection.rollback()

    assert claimed_ids(store) == [kept.run_id]
    assert store.get_run(dropped.run_id) is None
    assert accept(store, key="k").new


def test_a_callers_commit_is_durable_and_wakes_workers(store, connection):
    woken = threading.Event()
    end = store.listen(woken.set)
    assert woken.wait(TIMEOUT)  # once, for having connected
    woken.clear()
    connection.execute("SET synchronous_commit = off")
    connection.commit()

    enqueue_in(connection, store, order())
    during = connection.execute("SHOW synchronous_commit").fetchone()
    connection.commit()

    assert woken.wait(TIMEOUT)
    assert during == ("on",)
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("off",)
    end()


# -- sessions that end --


def terminate_all(connection: psycopg.Connection[Any]) -> None:
    """End every other session of this database."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    connection.commit()


def test_sessions_that_were_ended_while_idle_are_replaced_unnoticed(store, connection):
    keyed = enqueue_one(store, key="k")
    held = claim_one(store)
    store.pulse().beat([WORKER])
    terminate_all(connection)

    assert store.get_run(keyed).state == "running"
    assert succeed(store, held) is Settled.DONE
    terminate_all(connection)
    assert accept(store, key="k").run_id == keyed
    assert claimed_ids(store) == []
    run_id = enqueue_one(store)
    assert claimed_ids(store) == [run_id]
    assert store.apply([AddLogs(run_id, 1, ((0, "info", "hello"),))]) == [True]
    assert cancel(store, run_id) == "requested"
    assert store.pulse().beat([WORKER]) == {WORKER}


def test_a_session_that_ends_under_a_waiting_settle_is_made_good(url, store, connection):
    held = enqueue_and_claim(store)
    connection.execute("SELECT 1 FROM duly_runs WHERE id = %s FOR UPDATE", [held.run_id])

    settling = InBackground(lambda: succeed(store, held))
    wait_for_a_lock(url, what="the settle waits for the row")
    terminate_all(connection)

    assert settling.answer() is Settled.DONE
    assert state_of(store, held.run_id) == "succeeded"


def test_the_store_outlives_its_server(private_postgres: PostgresServer):
    with closing(open_store(private_postgres.create_database())) as store:
        register(store)
        woken = threading.Event()
        end = store.listen(woken.set)
        before = enqueue_one(store)
        assert woken.wait(TIMEOUT)
        private_postgres.stop("immediate")

        with pytest.raises(StoreUnavailable):
            enqueue_one(store)
        with pytest.raises(StoreUnavailable):
            store.pulse().beat([WORKER])
        woken.clear()
        private_postgres.start()

        after = enqueue_one(store)
        assert claimed_ids(store) == [before, after]
        assert woken.wait(TIMEOUT)
        assert store.pulse().beat([WORKER]) == {WORKER}
        end()


def test_a_beat_fails_rather_than_hangs(url, connection, monkeypatch):
    monkeypatch.setattr(pulse, "ANSWER_SECONDS", 1)
    with closing(open_store(url)) as store:
        connection.execute("SELECT 1 FROM duly_workers FOR UPDATE")

        with pytest.raises(StoreUnavailable):
            store.pulse().beat([WORKER])

        connection.rollback()
        assert store.pulse().beat([WORKER, OTHER_WORKER]) == {WORKER}
        assert store.pulse().read() == {WORKER: 1}


def test_a_forked_child_opens_its_own_connections(store):
    run_id = enqueue_one(store)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            os._exit(0 if claimed_ids(store) == [run_id] else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert state_of(store, run_id) == "running"
    assert accept(store).new


def test_what_a_claim_took_unheard_of_is_handed_back(store, connection):
    enqueue_many(store, 2)
    connection.rollback()
    known = claim(store, 1)[0]
    unknown = claim_without_commit(connection)
    connection.commit()

    given_back = store.apply([HandBackUnknown(WORKER, frozenset({known.run_id}))])[0]

    assert given_back == unknown
    assert state_of(store, unknown[0]) == "queued"


# -- roles, settings, schemas --


def with_options(url: str, options: str) -> str:
    """Return the address of a session with other defaults."""
    return f"{url}?options={options.replace(' ', '%20').replace('=', '%3D')}"


def test_defaults_of_the_server_weaken_nothing(url, store):
    weak = "-c synchronous_commit=off -c default_transaction_isolation=serializable"
    with closing(open_store(with_options(url, weak))) as other:
        address = other._address  # noqa: SLF001 - to look at what its sessions do
        with closing(connect(address, HOT)) as session:
            settings = [
                session.execute(f"SHOW {name}").fetchone()[0]
                for name in ("synchronous_commit", "default_transaction_isolation")
            ]
        run_id = enqueue_one(other)

        assert settings == ["on", "read committed"]
        assert claimed_ids(other) == [run_id]


def test_a_database_that_cannot_be_written_says_so(url, store):
    read_only = with_options(url, "-c default_transaction_read_only=on")
    with closing(open_store(read_only)) as other:
        with pytest.raises(StoreReadOnly, match="primary"):
            enqueue_one(other)
        assert other.list_queues() == []


def test_two_schemas_of_a_database_stay_apart(url, store, connection):
    connection.execute("CREATE SCHEMA annex")
    connection.commit()
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


# -- what errors say --

SECRET = "s3cr3t/w@rd"  # noqa: S105 - a canary
ENCODED = "s3cr3t%2Fw%40rd"


def everything_said(error: BaseException) -> str:
    """Return all that a log of this error would hold."""
    return "".join(traceback.format_exception(error)) + repr(error)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://app:{secret}@127.0.0.1:1/shop", StoreUnavailable),
        ("postgresql://app:{secret}@host.invalid/shop", StoreUnavailable),
        ("postgresql://app:{secret}@[127.0.0.1:1/shop", StoreRefused),
        ("postgresql://app:{secret}@127.0.0.1:1/shop?nonsense=1", StoreRefused),
        ("postgresql://app@127.0.0.1:1/shop?password={secret}", StoreUnavailable),
        ("postgresql://app:{secret}@127.0.0.1:none/shop", StoreUnavailable),
    ],
)
def test_an_address_that_leads_nowhere_is_told_without_its_password(address, expected):
    with pytest.raises(expected) as caught:
        open_store(address.format(secret=ENCODED))

    said = everything_said(caught.value)
    assert SECRET not in said
    assert ENCODED not in said


def test_a_refused_role_or_database_is_told_without_the_password(postgres_server):
    place = postgres_server.url("shop").partition("@")[2]
    for address in (
        f"postgresql://nobody:{ENCODED}@{place}",
        f"postgresql://duly:{ENCODED}@{place}",
    ):
        with pytest.raises(StoreRefused, match="does not exist") as caught:
            open_store(address)
        assert SECRET not in everything_said(caught.value)


def test_the_shown_address_has_no_password(postgres_server, url):
    with closing(open_store(url.replace("duly@", f"duly:{ENCODED}@"))) as store:
        assert store.shown_url == url.replace("duly@", "duly:***@")
        with pytest.raises(StoreError) as caught:
            store.apply([order(run_id="no uuid")])
        assert SECRET not in everything_said(caught.value)
        assert "duly:***@" in str(caught.value)


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


def test_a_whole_life_passes_through_a_pooler(pgbouncer: PgBouncer):
    with opened_through(pgbouncer) as store:
        plain, keyed = enqueue_one(store), enqueue_one(store, key="k")
        enqueue_many(store, 3, delay_seconds=60)
        held = claim(store)
        section = store.section()
        section.connection.execute("CREATE TABLE ledger (id integer)")
        done = section.settle_and_commit(success(held[0]))

        assert [claimed.run_id for claimed in held] == [plain, keyed]
        assert done is Settled.DONE
        assert succeed(store, held[1]) is Settled.DONE
        assert accept(store, key="k").run_id == keyed
        assert store.pulse().beat([WORKER]) == {WORKER}
        assert tick(store).next_due_in is not None
        assert recover(store) == []
        assert any("pooler" in notice for notice in store.notices)


def test_a_listener_behind_a_pooler_hears_its_own_process_and_ends(pgbouncer: PgBouncer):
    with opened_through(pgbouncer) as store:
        woken = threading.Event()
        end = store.listen(woken.set)

        enqueue_one(store)

        assert woken.wait(TIMEOUT)
        end()


# -- what a claim costs --


def buffers_of_a_claim(connection: psycopg.Connection[Any]) -> int:
    for name, setting in HOT.items():
        connection.execute("SELECT set_config(%s, %s, true)", [name, setting])
    place = {
        "worker_id": WORKER,
        "after_queue": "",
        "queues": None,
        "lanes": [LANE],
        "limits": [50],
        "tasks": [TASK],
        "last": 0,
    }
    explain = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + CLAIM["take"]
    plan = connection.execute(explain, place).fetchone()[0][0]["Plan"]
    connection.rollback()
    assert "Seq Scan" not in str(plan)
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


def test_a_claim_costs_the_same_whatever_waits_or_is_finished(store, connection):
    # The statistics say that nothing was ever there, which must not mislead the plan.
    connection.execute("ANALYZE")
    connection.commit()
    enqueue_many(store, 200)
    buffers_of_a_claim(connection)
    alone = buffers_of_a_claim(connection)
    connection.execute(
        "INSERT INTO duly_waiting"
        " (id, task, queue, lane, priority, created_at, due_at, arguments)"
        " SELECT gen_random_uuid(), task, queue, lane, 0, now(), now() + interval '1 day', ''"
        " FROM duly_runs, generate_series(1, 100)"
    )
    connection.execute(
        "INSERT INTO duly_history (id, task, queue, lane, state, outcome, priority, generation,"
        " claim_number, attempt, retries_used, crashes, created_at, due_at, finished_at, arguments)"
        " SELECT gen_random_uuid(), task, queue, lane, 'succeeded', 'returned', 0, 1, 1, 1, 0, 0,"
        " now(), now(), now(), '' FROM duly_runs, generate_series(1, 100)"
    )
    connection.commit()
    buffers_of_a_claim(connection)

    among_many = buffers_of_a_claim(connection)

    assert among_many == pytest.approx(alone, rel=0.05)
