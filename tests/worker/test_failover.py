"""A server that stops being the primary while its connections stay open."""

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from duly import Duly
from duly.errors import StoreError, StoreReadOnly
from duly.events import EventBus, WorkerGaveUp
from duly.store.ops.upkeep import Tick
from duly.store.postgres import reconnecting_connection
from duly.store.protocol import FailingWrites
from duly.worker.services.write_monitor import WriteMonitor
from tests.servers.cable import Cable
from tests.servers.kinds import BEHIND_PGBOUNCER, kind_or_skip
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, database_of
from tests.servers.processes import is_running, wait_until
from tests.worker.trees import Tree

on_the_newest = pytest.mark.stores(BEHIND_PGBOUNCER.name if BEHIND_PGBOUNCER else "postgres")
on_postgres = pytest.mark.stores("postgres")
SOON = 30.0
LEASE = 15.0


@pytest.fixture
def second_postgres(private_postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that is not started yet."""
    server = private_postgres.another()
    yield server
    server.close()


def make_read_only(server: PostgresServer) -> None:
    """Refuse every write from now on, and end no connection."""
    with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
        connection.execute("SELECT pg_reload_conf()")

    def is_read_only() -> bool:
        with psycopg.connect(server.url("postgres")) as connection:
            return connection.execute("SHOW default_transaction_read_only").fetchone() == ("on",)

    wait_until(is_read_only, seconds=SOON, what="the server is read-only")


@on_the_newest
def test_a_worker_follows_a_failover_that_ends_no_connection(private_postgres, second_postgres):
    def fail_over(first: PostgresServer, second: PostgresServer) -> None:
        first.copy_to(second)
        second.start()
        make_read_only(first)

    assert_that_a_worker_follows(fail_over, private_postgres, second_postgres)


@on_the_newest
def test_a_worker_follows_a_standby_that_replaces_the_primary(private_postgres, second_postgres):
    def fail_over(first: PostgresServer, second: PostgresServer) -> None:
        first.start_standby(second)
        first.stop()
        second.promote()
        first.follow(second)
        first.start()

    assert_that_a_worker_follows(fail_over, private_postgres, second_postgres)


def assert_that_a_worker_follows(
    fail_over: Callable[[PostgresServer, PostgresServer], None],
    first: PostgresServer,
    second: PostgresServer,
) -> None:
    """Fail over while a body runs; the same worker records its end on the new primary."""
    url = first.create_database()
    app = Duly(url.replace(f":{first.port}/", f":{first.port},127.0.0.1:{second.port}/"))
    begun, may_end = threading.Event(), threading.Event()

    @app.task(name="linger")
    def linger() -> str:
        begun.set()
        assert may_end.wait(SOON)
        return "done"

    @app.task(name="quick")
    def quick(number: int) -> int:
        return number

    with app.worker(concurrency=2) as worker:
        assert quick.enqueue(1).result(timeout=SOON) == 1
        run = linger.enqueue()
        assert begun.wait(SOON)
        holder = worker.worker_id
        fail_over(first, second)
        may_end.set()

        with psycopg.connect(second.url(database_of(url)), autocommit=True) as primary:
            state = "SELECT state FROM duly_every_run WHERE id = %s"
            wait_until(
                lambda: primary.execute(state, (run.id,)).fetchone() == ("succeeded",),
                seconds=SOON,
                what="the new primary knows how the run ended",
            )
        assert quick.enqueue(2).result(timeout=SOON) == 2
        assert worker.worker_id == holder
    app.close()


@on_the_newest
def test_what_was_opened_on_a_standby_is_used_once(private_postgres, second_postgres):
    primary, standby = private_postgres, second_postgres
    url = primary.create_database()
    with closing(Duly(url)) as app:
        assert app.runs.list() == []
    primary.start_standby(standby)

    # As at an address that leads to the old primary until a failover is complete.
    with (
        Cable("127.0.0.1", standby.port) as cable,
        closing(Duly(url.replace(f":{primary.port}/", f":{cable.port}/"))) as app,
    ):

        @app.task(name="leaf")
        def leaf() -> None: ...

        store = app.store
        assert app.runs.list() == []
        assert store.heartbeats().read() == {}
        sessions = [session for _, session in store._here().readers._idle]
        sessions.append(store._here().writers._lines["work"]._session)
        assert [session.is_read_only for session in sessions] == [True, True]
        with psycopg.connect(standby.url("postgres"), autocommit=True) as connection:
            connection.execute("SELECT pg_wal_replay_pause()")
        cable.lead_to(primary.port)

        run = leaf.enqueue()

        assert [found.id for found in app.runs.list()] == [run.id]
        assert [session.is_alive() for session in sessions] == [False, False]


@on_the_newest
def test_sessions_stay_behind_a_pooler_that_takes_its_server_for_a_standby(
    private_postgres, second_postgres
):
    first, second = private_postgres, second_postgres
    url = first.create_database()
    with closing(Duly(url)) as app:
        assert app.runs.list() == []
    first.start_standby(second)

    with PgBouncer(second, kind_or_skip("pgbouncer").binaries) as bouncer:
        # PgBouncer tells every client what its first connection was told.
        psycopg.connect(bouncer.url(database_of(url))).close()
        second.promote()
        with closing(Duly(bouncer.url(database_of(url)))) as app:
            store = app.store
            assert app.runs.list() == []
            ((_, session),) = store._here().readers._idle
            assert session.info.parameter_status("in_hot_standby") == "on"

            assert app.runs.list() == []

            assert [idle for _, idle in store._here().readers._idle] == [session]
            assert store._address.epoch.number == 0


@on_postgres
def test_a_read_only_server_ends_every_session_of_the_process(app):
    store = app.store
    store.do(Tick(1))
    store.heartbeats().beat(["nobody"])
    sessions = [store._here().writers._lines["work"]._session, store.heartbeats()._session]
    assert [session.is_alive() for session in sessions] == [True, True]

    sessions[0].execute("SET default_transaction_read_only = on")
    store.do(Tick(1))

    assert [session.is_alive() for session in sessions] == [False, False]
    assert store._address.epoch.number == 1


@on_postgres
def test_a_write_that_is_refused_as_read_only_ends_every_session_of_the_process(app, store_url):
    """Some servers refuse writes without reporting a setting: only the error tells of it."""

    @app.task(name="leaf")
    def leaf() -> int:
        return 1

    store = app.store
    store.do(Tick(1))
    store.heartbeats().beat(["nobody"])
    sessions = [store._here().writers._lines["work"]._session, store.heartbeats()._session]
    leaf.enqueue()
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE old AS"
            " SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        )
        connection.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " IF pg_backend_pid() IN (SELECT pid FROM old) THEN"
            " RAISE EXCEPTION 'no' USING errcode = '25006'; END IF; RETURN new; END $$"
        )
        connection.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON duly_runs FOR EACH ROW EXECUTE FUNCTION fail()"
        )

    run = leaf.enqueue()
    store.do(Tick(1))
    store.heartbeats().beat(["nobody"])

    assert run.refresh().state == "queued"
    assert [session.is_alive() for session in sessions] == [False, False]
    assert store._address.epoch.number == 1


class FailingStore:
    """A store of which only the beats arrive."""

    def __init__(self) -> None:
        self.record = reconnecting_connection.WriteFailureRecord()

    def failing_writes(self) -> FailingWrites | None:
        since, until = self.record.failing_since, self.record.failed_at
        return None if since is None else FailingWrites(since, until, self.record.reason)


def test_a_worker_gives_up_when_only_its_beats_arrive_for_a_lease(passing):
    time = passing(reconnecting_connection)
    bus, events = EventBus(), []
    bus.subscribe(events.append)
    store, beats = FailingStore(), [time.now]
    watch = WriteMonitor(store, bus, "w", lambda: beats[0], LEASE)

    def fail_for(seconds: float) -> None:
        for _ in range(int(seconds) + 1):
            store.record.failed("too many connections")
            watch.tick()
            time.advance(1)

    fail_for(LEASE)
    assert not watch.gave_up

    beats[0] = None  # Beats fail, too: an outage, which the worker waits out.
    fail_for(LEASE)
    beats[0] = time.now
    fail_for(LEASE)
    assert not watch.gave_up

    store.record.answered()  # One write arrives.
    fail_for(LEASE)
    assert not watch.gave_up
    fail_for(1)

    assert watch.gave_up
    assert events == [WorkerGaveUp("w", LEASE, "too many connections")]


def test_a_worker_that_writes_nothing_after_a_failed_write_does_not_give_up(passing):
    time = passing(reconnecting_connection)
    store = FailingStore()
    watch = WriteMonitor(store, EventBus(), "w", lambda: 0.0, LEASE)

    for _ in range(3):  # Such as calls of an application that enqueues once in a minute.
        store.record.failed("the server restarts")
        time.advance(4 * LEASE)
        watch.tick()

    assert not watch.gave_up


@on_postgres
def test_a_worker_whose_writes_cannot_connect_gives_up_and_comes_back(app, monkeypatch):
    @app.task(name="quick")
    def quick(number: int) -> int:
        return number

    events = []
    app.bus.subscribe(events.append)
    connect = reconnecting_connection.connect
    is_full = threading.Event()

    def refuse(*args):
        if is_full.is_set():
            raise StoreReadOnly("no more connections")
        return connect(*args)

    monkeypatch.setattr(reconnecting_connection, "connect", refuse)
    with app.worker(concurrency=1, lease=0.6, beat=0.2) as worker:
        assert quick.enqueue(1).result(timeout=SOON) == 1
        before = worker.worker_id
        is_full.set()
        app.store._address.epoch.advance()

        def has_given_up() -> bool:
            with contextlib.suppress(StoreError):
                quick.enqueue(0)
            return any(isinstance(event, WorkerGaveUp) for event in events)

        wait_until(
            has_given_up,
            seconds=SOON,
            what="the worker gives up",
        )
        is_full.clear()
        wait_until(
            lambda: worker.worker_id != before, seconds=SOON, what="the worker has a new identity"
        )
        assert quick.enqueue(2).result(timeout=SOON) == 2


@on_postgres
@pytest.mark.parametrize("code", ["53100", "P0001", "55P03"])
def test_a_server_that_answers_makes_no_worker_give_up(app, store_url, code):
    store = app.store
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(
            "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'no' USING errcode = '{code}'; END $$"
        )
        connection.execute(
            "CREATE TRIGGER fail BEFORE INSERT ON duly_runs FOR EACH ROW EXECUTE FUNCTION fail()"
        )

    @app.task(name="leaf")
    def leaf() -> None: ...

    for _ in range(3):
        with pytest.raises(StoreError):
            leaf.enqueue()
        assert store.failing_writes() is None


@pytest.fixture
def role(store_url: str):
    """A role of the workers' own, whose connections can be refused."""
    name = f"worker_{uuid.uuid4().hex}"
    with psycopg.connect(store_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {name} LOGIN IN ROLE pg_read_all_data, pg_write_all_data")
        yield name
        connection.execute(f"DROP ROLE {name}")


@on_postgres
@pytest.mark.process
def test_a_worker_process_whose_writes_cannot_connect_is_replaced(
    shop, notes, store_url, role, tmp_path
):
    own_url = store_url.replace("//duly@", f"//{role}@")
    # Beats are written and read on one session. Its last query may be any of these.
    others = (
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
        " WHERE usename = %s AND query NOT LIKE '%%beats + 1%%'"
        " AND query NOT LIKE 'SELECT id, beats,%%' AND query NOT LIKE '%%reverse(id)%%'"
    )
    with (
        psycopg.connect(store_url, autocommit=True) as administrator,
        Tree(own_url, tmp_path).ready() as tree,
    ):
        run = shop.linger.enqueue(*notes.arguments(7))
        notes.wait_for_starts(1)
        (child,) = tree.children()
        beats = "SELECT FROM duly_workers WHERE state = 'live' AND beats > 0"
        wait_until(
            lambda: administrator.execute(beats).rowcount == 1, seconds=SOON, what="a first beat"
        )
        # The session for beats stays; every other one ends and cannot be opened again.
        administrator.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0")
        administrator.execute(others, (role,))
        notes.open_gate()
        wait_until(
            lambda: "every other write failed" in tree.log.read_text(),
            seconds=SOON,
            what=f"the worker gives up: {tree.log.read_text()}",
        )
        wait_until(lambda: not is_running(child), seconds=SOON, what="its process ends")
        administrator.execute(f"ALTER ROLE {role} CONNECTION LIMIT -1")
        assert run.result(timeout=SOON) == 7

    assert [attempt.outcome for attempt in run.attempts()] == ["stopped", "returned"]
    assert (run.record.attempt, run.record.crashes) == (1, 0)
