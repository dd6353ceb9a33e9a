"""PostgreSQL only: how the store handles sessions that end, hang or freeze."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import psycopg
import pytest

from duly import faultpoints
from duly.errors import AttemptTimedOut, ReadTooSlow, StoreBusy, StoreUnavailable
from duly.store.ops.recovery import HandBackUnknown
from duly.store.ops.runs import Settled
from duly.store.ops.updates import AddLogs
from duly.store.postgres import connection as connection_module
from duly.store.postgres import heartbeats, vacuum
from duly.store.postgres.address import Address
from duly.store.postgres.claim import SQL as CLAIM
from duly.store.postgres.connection import connect
from duly.store.postgres.pool import ConnectionPool
from duly.store.postgres.session_settings import FROZEN, HOT
from duly.store.postgres.store import READERS
from duly.store.postgres.task_transaction import PostgresTaskTransactionDriver
from duly.store.read_deadline import limit_read_time
from duly.store.store_factory import open_store
from duly.store.task_transaction import TaskTransaction
from tests.servers.postgres import PostgresServer
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    OTHER_WORKER,
    TIMEOUT,
    UNKNOWN_RUN,
    WORKER,
    accept,
    cancel,
    claim,
    claim_one,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    recover,
    register,
    state_of,
    succeed,
    success,
    tick,
)
from tests.store.postgres.verbs import PLACE, InBackground, claim_without_commit, wait_for_a_lock


@contextmanager
def armed(name: str, action: Callable[[], None]) -> Iterator[None]:
    """Run an action at a fault point."""
    faultpoints.arm(name, action)
    try:
        yield
    finally:
        faultpoints.disarm()


def terminate_all(connection: psycopg.Connection[Any]) -> None:
    """End every other session of this database."""
    connection.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )
    connection.commit()


def test_opening_connects_once_and_the_first_write_not_again(url, monkeypatch):
    open_store(url).close()  # Which sets up an empty one.
    session = connection_module.PostgresSession
    made = []

    def counted(*args: Any, **options: Any) -> Any:
        made.append(options)
        return connect_as_usual(*args, **options)

    connect_as_usual = session.connect
    monkeypatch.setattr(session, "connect", counted)

    with closing(open_store(url)) as opened:
        enqueue_one(opened)

    assert len(made) == 1


def test_sessions_that_ended_while_idle_are_replaced_without_an_error(store, connection):
    keyed = enqueue_one(store, key="k")
    held = claim_one(store)
    store.heartbeats().beat([WORKER])
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
    assert store.heartbeats().beat([WORKER]) == {WORKER}


def test_a_settle_whose_session_ends_while_it_waits_is_repeated(url, store, connection):
    held = enqueue_and_claim(store)
    connection.execute("SELECT 1 FROM duly_runs WHERE id = %s FOR UPDATE", [held.run_id])

    settling = InBackground(lambda: succeed(store, held))
    wait_for_a_lock(url, what="the settle waits for the row")
    terminate_all(connection)

    assert settling.answer() is Settled.DONE
    assert state_of(store, held.run_id) == "succeeded"


def test_the_store_works_again_after_a_restart_of_its_server(private_postgres: PostgresServer):
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
            store.heartbeats().beat([WORKER])
        with pytest.raises(StoreUnavailable, match="refused"):
            store.list_queues()
        woken.clear()
        private_postgres.start()

        after = enqueue_one(store)
        assert claimed_ids(store) == [before, after]
        assert woken.wait(TIMEOUT)
        assert store.heartbeats().beat([WORKER]) == {WORKER}
        end()


def test_a_beat_that_gets_no_answer_fails_instead_of_hanging(url, connection, monkeypatch):
    monkeypatch.setattr(heartbeats, "ANSWER_SECONDS", 1)
    with closing(open_store(url)) as store:
        connection.execute("SELECT 1 FROM duly_workers FOR UPDATE")

        with pytest.raises(StoreUnavailable):
            store.heartbeats().beat([WORKER])

        connection.rollback()
        assert store.heartbeats().beat([WORKER, OTHER_WORKER]) == {WORKER}
        seen = store.heartbeats().read()
        assert list(seen) == [WORKER]
        assert seen[WORKER].beats == 1
        assert 0 <= seen[WORKER].age < 60


def test_a_worker_frozen_over_an_unread_answer_delays_recovery_for_a_bounded_time(url, store):
    """The server waits inside the claim's transaction for room to write its answer."""
    for _ in range(20):
        enqueue_many(store, 5, arguments="x" * 250_000)
    impatient = {name: "1s" if value == FROZEN else value for name, value in HOT.items()}
    with closing(connect(Address(url), impatient)) as frozen:
        frozen.execute("BEGIN")
        take = CLAIM["take"] % {name: f"${n}" for n, name in enumerate(PLACE, 1)}
        values = [None if value is None else str(value).encode() for value in PLACE.values()]
        frozen.pgconn.send_query_params(take.encode(), values)
        wait_until(lambda: is_writing(url), seconds=TIMEOUT, what="the server waits for its client")

        assert recover_as_a_service(store) == []


def recover_as_a_service(store: Any) -> list[str]:
    """Try again until the locks of the frozen process are released."""
    found: list[list[str]] = []

    def is_recovered() -> bool:
        with suppress(StoreBusy):
            found.append(recover(store))
        return bool(found)

    wait_until(is_recovered, seconds=TIMEOUT, what="the recovery")
    return found[0]


def is_writing(url: str) -> bool:
    """Return whether some server process waits until its client reads."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite'"
    with psycopg.connect(url) as connection:
        return connection.execute(waiting).fetchone() != (0,)


def test_a_settle_frozen_before_its_commit_delays_recovery_for_a_bounded_time(
    url, store, monkeypatch
):
    monkeypatch.setattr(connection_module, "FROZEN", "1s")
    held = enqueue_and_claim(store)
    section = store.task_transaction()

    def freeze():
        assert recover_as_a_service(store) == [held.run_id]

    with armed("transaction.before_commit", freeze), pytest.raises(StoreUnavailable):
        section.settle_and_commit(success(held))

    assert state_of(store, held.run_id) == "queued"


def test_a_body_may_run_a_script_in_its_transaction(store, connection):
    held = enqueue_and_claim(store)
    section = store.task_transaction()
    section.connection.execute("CREATE TABLE one (id integer); CREATE TABLE two (id integer)")

    assert section.settle_and_commit(success(held)) is Settled.DONE
    assert connection.execute("SELECT to_regclass('two') IS NOT NULL").fetchone() == (True,)


@pytest.fixture
def other(store):
    """A connection of the application in autocommit mode."""
    with psycopg.connect(store.url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("limit", ["idle_in_transaction_session_timeout", "transaction_timeout"])
def test_a_body_may_take_longer_than_the_servers_limits_for_transactions(store, other, limit):
    if limit == "transaction_timeout" and other.info.server_version < 170_000:
        pytest.skip("this server has no such limit")
    name = other.execute("SELECT current_database()").fetchone()[0]
    other.execute(f"ALTER DATABASE {name} SET {limit} = '100ms'")
    held = enqueue_and_claim(store)
    section = store.task_transaction()
    section.connection.execute("CREATE TABLE one (id integer)")
    threading.Event().wait(0.3)

    assert section.settle_and_commit(success(held)) is Settled.DONE


def test_a_process_that_is_frozen_in_its_body_keeps_its_locks_no_longer_than_its_limit(
    store, other, monkeypatch
):
    other.execute("CREATE TABLE account (id integer)")
    other.execute("INSERT INTO account VALUES (1)")
    section = store.task_transaction(0.2)
    # The timer of a process that is stopped strikes nobody.
    monkeypatch.setattr(TaskTransaction, "_expire", lambda _: None)
    section.connection.execute("UPDATE account SET id = 2")

    other.execute("SET lock_timeout = '20s'")
    other.execute("UPDATE account SET id = 3 WHERE id = 1")

    assert other.execute("SELECT id FROM account").fetchone() == (3,)
    section.rollback()


def test_a_timeout_during_the_start_of_a_task_transaction_returns_its_connection(url, monkeypatch):
    address = Address(url)
    few = ConnectionPool(address, {}, size=1, seconds=0.05)
    section = TaskTransaction(PostgresTaskTransactionDriver(address, few), None)
    with monkeypatch.context() as patch:
        patch.setattr(connection_module.PostgresSession, "execute", _time_out)
        with pytest.raises(AttemptTimedOut):
            _ = section.connection

    with few.connection() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    few.close()


def _time_out(*_: object) -> None:
    raise AttemptTimedOut


def test_a_caller_that_waits_too_long_for_a_connection_gets_an_error_with_the_reason(url):
    few = ConnectionPool(Address(url), {}, size=1, seconds=0.05)
    with few.connection(), pytest.raises(StoreUnavailable, match="in use"):
        few.acquire()

    with few.connection() as session:
        assert session.execute("SELECT 1").fetchone() == (1,)
    few.close()


def test_a_tick_vacuums_dead_rows(store, connection, monkeypatch):
    monkeypatch.setattr(vacuum, "DEAD_ROWS", 10)
    enqueue_many(store, 50)
    store.apply([success(found) for found in claim(store)])
    vacuums = "SELECT pg_stat_get_vacuum_count('duly_runs'::regclass)"

    def has_swept() -> bool:
        # A server process reports its dead rows at most once a second, at the end of a transaction.
        succeed(store, enqueue_and_claim(store))
        tick(store)
        connection.rollback()
        return connection.execute(vacuums).fetchone() != (0,)

    wait_until(has_swept, seconds=TIMEOUT, what="the table is vacuumed")


def test_a_forked_child_opens_its_own_connections(store):
    def served_by() -> int:
        session = store._here().writers._lines["claim"]._session
        return 0 if session is None else session.pid

    enqueue_and_claim(store)
    parents = served_by()
    run_id = enqueue_one(store)
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            is_ours = claimed_ids(store) == [run_id]
            os._exit(0 if is_ours and served_by() not in {0, parents} else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert claimed_ids(store) == []
    assert served_by() == parents
    assert state_of(store, run_id) == "running"


def test_runs_of_a_claim_whose_reply_was_lost_are_handed_back(store, connection):
    enqueue_many(store, 2)
    connection.rollback()
    known = claim(store, 1)[0]
    unknown = claim_without_commit(connection)
    connection.commit()

    given_back = store.do(HandBackUnknown(WORKER, frozenset({known.run_id})))

    assert given_back == unknown
    assert state_of(store, unknown[0]) == "queued"


def test_a_lone_statement_can_be_executed_after_a_rollback_on_its_connection(url):
    with closing(connect(Address(url), HOT)) as session:
        before = session.execute_alone("SELECT 1 + %(number)s::int", {"number": 1})
        session.begin()
        session.execute("SELECT 2")
        session.execute("ROLLBACK")
        session.execute("SELECT 3")

        after = session.execute_alone("SELECT 1 + %(number)s::int", {"number": 1})

    assert before == after == [(2,)]


def test_the_bound_of_a_read_includes_its_wait_for_a_connection(store):
    readers = store._here().readers
    lent = [readers.acquire() for _ in range(READERS)]
    timer = threading.Timer(0.3, readers.release, [lent[0]])
    timer.start()

    with limit_read_time(0.1), pytest.raises(ReadTooSlow):
        store.get_run(UNKNOWN_RUN)

    timer.join()
    for loan in lent[1:]:
        readers.release(loan)
