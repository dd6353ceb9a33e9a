"""PostgreSQL only: one of many workers does the upkeep, and it costs no more with many of them."""

import json
import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median
from typing import Any

import psycopg
import pytest

from duly.limits import TRANSACTION_BYTES, WATCHERS
from duly.store.ops.carriers import RerouteRuns
from duly.store.ops.recovery import RecoverOrphans
from duly.store.ops.steps import RecheckWaits
from duly.store.ops.upkeep import DutyTurn, Prune, RollUpCounts, Tick
from duly.store.postgres.connection import PostgresSession
from duly.store.postgres.session_settings import WORK
from duly.store.statements import load
from duly.store.store_factory import open_store
from duly.worker.services.maintenance import TickPolicy
from duly.worker.services.recovery import judge_unknown
from tests.servers.processes import wait_until
from tests.store.conformance.verbs import (
    OTHER_TASK,
    TASK,
    TIMEOUT,
    claimed_ids,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    register,
    run_of,
    succeed,
    tick,
)
from tests.store.postgres.plans import Server

MINUTE = 60.0
TURN = DutyTurn("duty", MINUTE)
DUTIES = [
    Tick(100),
    Prune(1, 100),
    RollUpCounts(100),
    RecheckWaits("", 100),
    RerouteRuns(100),
    RecoverOrphans(judge_unknown, 100),
]
MANY = 1000


@pytest.fixture
def other(url: str, store: Any) -> Iterator[Any]:
    """The same store, as another worker opens it."""
    with closing(open_store(url)) as other:
        yield other


def hold(connection: psycopg.Connection[Any], duty: str) -> None:
    """Hold a duty until the transaction ends, as a worker does that is carrying it out."""
    place = {"duty": duty, "longest": "300s"}
    assert connection.execute(load("postgres", "tick")["lock_duty"], place).fetchone()[0]


def add_workers(connection: psycopg.Connection[Any], count: int, *, tasks: int = 150) -> None:
    """Replace the live workers by a number of workers of one program."""
    names = json.dumps([f"shop.module{number}:task" for number in range(tasks)])
    connection.execute("DELETE FROM duly_workers")
    connection.execute(
        "INSERT INTO duly_workers"
        " (id, state, host, pid, started_at, seen_at, lease_seconds, queues, tasks)"
        " SELECT md5(n::text), 'live', '', 1, now(), now(), 15, '[]', %s"
        " FROM generate_series(1, %s) AS n",
        [names, count],
    )


class TestTurns:
    """A duty that one worker does for all."""

    @pytest.mark.parametrize("op", DUTIES, ids=lambda op: type(op).__name__)
    def test_a_duty_is_done_once_in_its_interval_by_the_first_worker(self, store, other, op):
        op = op._replace(turn=TURN)

        first, second = store.do(op), other.do(op)

        assert first is not None
        assert second is None

    @pytest.mark.parametrize("op", DUTIES, ids=lambda op: type(op).__name__)
    def test_an_op_without_a_turn_is_done_at_any_time(self, store, other, connection, op):
        store.do(op._replace(turn=TURN))
        hold(connection, "duty")

        assert other.do(op) is not None

    def test_a_duty_is_done_again_after_its_interval(self, store, other, connection):
        op = Tick(100, TURN)
        store.do(op)
        connection.execute("UPDATE duly_duties SET done_at = done_at - interval '61 seconds'")
        connection.commit()

        assert other.do(op) is not None
        assert store.do(op) is None

    def test_a_clock_that_was_set_back_does_not_postpone_a_duty(self, store, other, connection):
        op = Tick(100, TURN)
        store.do(op)
        connection.execute("UPDATE duly_duties SET done_at = done_at + interval '1 day'")
        connection.commit()

        assert other.do(op) is not None

    def test_two_workers_never_do_a_duty_at_the_same_time(self, store, connection):
        hold(connection, "tick")

        with_interval = store.do(Tick(100, DutyTurn("tick", MINUTE)))
        without = store.do(Tick(100, DutyTurn("tick")))
        another = store.do(Tick(100, DutyTurn("another")))

        assert (with_interval, without) == (None, None)
        assert another is not None

    def test_a_duty_that_failed_does_not_count_as_done(self, store, other, monkeypatch):
        op = Prune(1, 100, turn=TURN)
        execute = PostgresSession.execute

        def fail(session: PostgresSession, sql: Any, *args: Any, **options: Any) -> Any:
            if "duly_marks" in str(sql) or "duly_acts" in str(sql):
                raise psycopg.errors.InternalError_("struck")
            return execute(session, sql, *args, **options)

        with monkeypatch.context() as patch:
            patch.setattr(PostgresSession, "execute", fail)
            with pytest.raises(Exception, match="struck"):
                store.do(op)

        assert other.do(op) is not None

    def test_a_duty_whose_holder_is_killed_is_done_by_the_next_worker(self, url, store, connection):
        op = Tick(100, DutyTurn("tick", 0.1))
        hold(connection, "tick")
        assert store.apply([op]) == [None]

        with psycopg.connect(url, autocommit=True) as admin:
            pid = connection.info.backend_pid
            assert admin.execute("SELECT pg_terminate_backend(%s, 30000)", [pid]).fetchone()[0]

        assert store.do(op) is not None

    def test_a_frozen_holder_delays_due_runs_by_a_second(self, store, connection):
        run_id = enqueue_one(store, delay_seconds=0.001)
        wait_until(lambda: store.peek().next_due_in <= 0, seconds=TIMEOUT, what="it is due")
        hold(connection, "tick")
        ticks = TickPolicy(store)
        ticks.look(99.0, due=False, stuck=True, parked=False)  # As a new worker does.
        store.do(Tick(0))
        late = enqueue_one(store, delay_seconds=0.001)
        wait_until(lambda: store.peek().next_due_in <= 0, seconds=TIMEOUT, what="it is due")

        found = [
            ticks.look(now, due=True, stuck=False, parked=False) for now in (100.0, 100.9, 101.0)
        ]

        assert [each is None for each in found] == [True, True, False]
        assert set(claimed_ids(store)) == {run_id, late}

    def test_a_new_worker_does_not_wait_for_its_turn(self, store, other):
        (run_id,) = enqueue_many(store, 1, task="shop:new")
        tick(store)
        assert run_of(store, run_id).parked == "unregistered"
        store.do(Tick(100, DutyTurn("tick", MINUTE)))

        register(other, "new", tasks=("shop:new",))
        TickPolicy(other).look(100.0, due=False, stuck=False, parked=True)

        assert run_of(store, run_id).parked is None


class TestManyWorkers:
    """The reads of upkeep do not grow with the number of live workers."""

    STATEMENTS = ("tick.unpark", "tick.park", "carry.seen_to", "recover.watchers")

    @pytest.fixture
    def server(self, url: str, store: Any) -> Iterator[Server]:
        """A session that counts the blocks it touches."""
        enqueue_many(store, 20, task="shop.module1:task")
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            yield Server(connection)

    def read(self, server: Server, workers: int) -> dict[str, int]:
        """Return how many blocks each statement reads."""
        add_workers(server.connection, workers)
        found = {}
        with server.undone():
            server.use(WORK)
            for name in self.STATEMENTS:
                stem, short = name.split(".")
                sql = load("postgres", stem)[short]
                sql = sql.replace("$1::float8", "6.25::float8").replace("$2::integer", "8")
                place = {"limit": 100, "queues": 100, "bytes": TRANSACTION_BYTES}
                found[name] = server.blocks(sql, place)
        return found

    def test_a_tick_reads_as_much_with_a_thousand_workers_as_with_ten(self, server):
        few, many = self.read(server, 10), self.read(server, MANY)

        assert {name: many[name] for name in many if many[name] > few[name] + 20} == {}

    def test_a_tick_considers_the_tasks_of_every_worker(self, store):
        for number in range(50):
            register(store, f"worker {number}", tasks=(f"shop:task{number % 5}", OTHER_TASK))
        store.do(Tick(100))
        known = [enqueue_one(store, task=f"shop:task{number}") for number in range(5)]
        unknown = enqueue_one(store, task="shop:task5")

        tick(store)

        assert [run_of(store, run_id).parked for run_id in known] == [None] * 5
        assert run_of(store, unknown).parked == "unregistered"

    @pytest.mark.timing
    def test_a_tick_takes_no_longer_with_a_thousand_workers(self, url, store):
        def seconds(workers: int) -> float:
            with psycopg.connect(url) as connection:
                add_workers(connection, workers)
            enqueue_many(store, 1000, task="shop.module1:task")
            taken = []
            for _ in range(9):
                began = time.perf_counter()
                store.do(Tick(1000))
                taken.append(time.perf_counter() - began)
            return median(taken)

        few, many = seconds(10), seconds(MANY)

        assert many <= 3 * few + 0.005


class TestWatchers:
    """A few workers watch the beats of all."""

    LATELY = 6.25

    def watchers(self, store: Any, workers: int) -> list[str]:
        pulse = store.heartbeats()
        with psycopg.connect(store.url) as connection:
            names = connection.execute("SELECT id FROM duly_workers ORDER BY id").fetchall()
        assert len(names) == workers
        return [name for (name,) in names if pulse.is_watcher({name}, self.LATELY)]

    @pytest.mark.parametrize("workers", [1, WATCHERS, WATCHERS + 1, 100])
    def test_at_most_a_few_workers_are_watchers(self, store, connection, workers):
        add_workers(connection, workers)
        connection.commit()

        assert len(self.watchers(store, workers)) == min(workers, WATCHERS)

    def test_workers_that_no_longer_beat_are_not_watchers(self, store, connection):
        add_workers(connection, 30)
        connection.commit()
        before = self.watchers(store, 30)
        connection.execute(
            "UPDATE duly_workers SET seen_at = seen_at - interval '7 seconds' WHERE id = ANY (%s)",
            [before],
        )
        connection.commit()

        after = self.watchers(store, 30)

        assert len(after) == WATCHERS
        assert set(before).isdisjoint(after)

    @pytest.mark.parametrize("step", ["1 hour", "-1 hour"])
    def test_after_a_step_of_the_servers_clock_all_workers_are_watchers_until_they_beat(
        self, store, connection, step
    ):
        add_workers(connection, 30)
        connection.execute("UPDATE duly_workers SET seen_at = seen_at + %s::interval", [step])
        connection.commit()
        assert len(self.watchers(store, 30)) == 30

        with psycopg.connect(store.url) as reading:
            names = [name for (name,) in reading.execute("SELECT id FROM duly_workers")]
        store.heartbeats().beat(names)

        assert len(self.watchers(store, 30)) == WATCHERS

    def test_a_reading_contains_each_workers_own_lease(self, store, connection):
        add_workers(connection, 300)
        connection.execute("UPDATE duly_workers SET lease_seconds = 99 WHERE id = md5('7')")
        connection.commit()

        leases = {seen.lease for seen in store.heartbeats().read().values()}

        assert leases == {15.0, 99.0}


class TestRechecks:
    """A recheck of all waits is a few statements, and one if nothing has happened since."""

    @pytest.fixture
    def looks(self, monkeypatch) -> list[str]:
        """The statements about waits that were sent."""
        steps = load("postgres", "steps")
        names = {
            steps[name]: name
            for name in ("counted", "pending", "wake", "note_rechecked", "rouse_waiting")
        }
        sent: list[str] = []
        execute = PostgresSession.execute

        def note(session: PostgresSession, sql: Any, *args: Any, **options: Any) -> Any:
            if sql in names:
                sent.append(names[sql])
            return execute(session, sql, *args, **options)

        monkeypatch.setattr(PostgresSession, "execute", note)
        return sent

    def add_waits(self, connection: psycopg.Connection[Any], count: int) -> None:
        connection.execute(
            "WITH run AS (INSERT INTO duly_waiting (id, task, queue, lane, priority, claim_number,"
            " created_at, due_at, arguments) SELECT gen_random_uuid(), %s, 'default', 'thread', 0,"
            " 1, now(), now() + interval '1 year', '' FROM generate_series(1, %s) RETURNING id)"
            " INSERT INTO duly_steps (run_id, name, kind, done, awaited, claim_number, began_at)"
            " SELECT id, 'wait', 'wait', false, 'event ' || id, 1, now() FROM run",
            [TASK, count],
        )
        connection.commit()

    def recheck(self, store: Any, limit: int) -> int:
        """Recheck all waits as a worker does; return how many runs continue."""
        roused, op = 0, RecheckWaits("", limit, DutyTurn("recheck", 0.000_001))
        while True:
            found = store.do(op)
            roused += found.roused
            if not found.after:
                return roused
            op = op._replace(after=found.after, counted=found.counted)

    def test_a_batch_of_waits_takes_two_statements(self, store, connection, looks):
        self.add_waits(connection, 2500)

        assert self.recheck(store, 1000) == 0

        assert looks == ["counted", *["pending", "wake"] * 3, "note_rechecked"]

    def test_a_recheck_reads_no_waits_if_nothing_has_happened(self, store, connection, looks):
        self.add_waits(connection, 10)
        self.recheck(store, 100)
        looks.clear()

        assert self.recheck(store, 100) == 0

        assert looks == ["counted"]

    def test_the_end_of_a_run_makes_the_next_recheck_read_the_waits(self, store, connection, looks):
        self.add_waits(connection, 10)
        self.recheck(store, 100)
        looks.clear()
        succeed(store, enqueue_and_claim(store))

        def reads_waits() -> bool:
            self.recheck(store, 100)
            return "pending" in looks

        wait_until(reads_waits, seconds=TIMEOUT, what="the server counts the end")

    def test_a_recheck_long_after_the_last_one_reads_the_waits(self, store, connection, looks):
        self.add_waits(connection, 10)
        self.recheck(store, 100)
        looks.clear()
        connection.execute("UPDATE duly_duties SET done_at = done_at - interval '601 seconds'")
        connection.commit()

        self.recheck(store, 100)

        assert "pending" in looks

    def test_a_recheck_that_was_interrupted_does_not_count(self, store, connection, looks):
        self.add_waits(connection, 10)
        found = store.do(RecheckWaits("", 5, DutyTurn("recheck", 0.000_001)))
        assert found.after
        looks.clear()

        self.recheck(store, 100)

        assert "pending" in looks
