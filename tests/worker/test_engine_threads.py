"""Threads of the engine that hang: they are noticed, and their worker is replaced or stops."""

import re
import threading
from collections.abc import Iterator

import psycopg
import pytest

from duly import Duly, faultpoints
from duly.errors import StoreError
from duly.events import EventBus, WorkerStalled
from duly.limits import STALLED_SECONDS
from duly.worker import engine_threads
from duly.worker.engine_threads import EngineThreads
from tests.servers.processes import wait_until
from tests.worker.trees import Tree

SOON = 30.0
LOOK = 0.5


class Thread:
    """A thread of the engine, as a look sees it."""

    name = "duly-claims"

    def __init__(self) -> None:
        self.turn_began_at: float | None = None
        self.lives = True

    def is_alive(self) -> bool:
        return self.lives


class Waiting:
    """The part of a store that is asked whether another process keeps it waiting."""

    def __init__(self) -> None:
        self.is_waiting = False
        self.is_closed = False

    def is_kept_waiting(self, _seconds: float) -> bool:
        if self.is_closed:
            raise StoreError("this store is closed")
        return self.is_waiting


class Judged:
    """A thread, what is told of it, and time that passes from look to look."""

    def __init__(self, time) -> None:
        self.time = time
        self.thread = Thread()
        self.store = Waiting()
        self.beats_since: float | None = time.now
        self.told: list[object] = []
        bus = EventBus()
        bus.subscribe(self.told.append)
        self.threads = EngineThreads(
            self.store, bus, "w", lambda: self.beats_since, STALLED_SECONDS, [self.thread], []
        )

    def look_for(self, seconds: float) -> bool:
        """Look every half second for as long; return what the last look found."""
        for _ in range(round(seconds / LOOK)):
            self.time.advance(LOOK)
            found = self.threads.look(every=LOOK)
        return found


@pytest.fixture
def judged(passing) -> Judged:
    """One that is in no turn yet, with beats that succeed."""
    return Judged(passing(engine_threads))


def test_a_thread_that_stays_in_one_turn_hangs(judged):
    judged.thread.turn_began_at = judged.time.now

    assert not judged.look_for(STALLED_SECONDS)
    assert judged.look_for(1.0)
    assert judged.look_for(5.0)
    assert judged.told == [WorkerStalled("w", "duly-claims", STALLED_SECONDS)]


def test_a_thread_without_work_does_not_hang(judged):
    assert not judged.look_for(3 * STALLED_SECONDS)


def test_turns_that_end_are_no_hang_however_long_they_take(judged):
    for _ in range(5):
        judged.thread.turn_began_at = judged.time.now
        assert not judged.look_for(0.9 * STALLED_SECONDS)


def test_an_outage_in_which_beats_fail_too_does_not_count(judged):
    judged.thread.turn_began_at = judged.time.now
    assert not judged.look_for(0.9 * STALLED_SECONDS)
    judged.beats_since = None
    assert not judged.look_for(5 * STALLED_SECONDS)
    judged.beats_since = judged.time.now

    assert not judged.look_for(0.9 * STALLED_SECONDS)
    assert judged.look_for(0.2 * STALLED_SECONDS)


def test_a_wait_for_another_process_does_not_count(judged):
    judged.thread.turn_began_at = judged.time.now
    judged.store.is_waiting = True

    assert not judged.look_for(5 * STALLED_SECONDS)
    judged.store.is_waiting = False
    assert judged.look_for(2 * STALLED_SECONDS)


def test_a_closed_store_is_no_hang(judged):
    judged.thread.turn_began_at = judged.time.now
    judged.store.is_closed = True

    assert not judged.look_for(5 * STALLED_SECONDS)


def test_time_in_which_no_thread_could_run_does_not_count(judged):
    judged.thread.turn_began_at = judged.time.now

    for _ in range(10):
        judged.time.advance(STALLED_SECONDS)
        assert not judged.threads.look(every=LOOK)


def test_a_thread_that_has_ended_is_lost(judged):
    assert not judged.threads.has_lost_one()
    judged.thread.lives = False

    assert judged.threads.has_lost_one()


@pytest.fixture
def hanging() -> Iterator[threading.Event]:
    """Lets threads that a test has hung at fault points continue."""
    may_continue = threading.Event()
    yield may_continue
    may_continue.set()
    faultpoints.disarm()


class TestEmbedded:
    """A worker inside a program has no supervisor: it reports the thread, and stops."""

    @pytest.fixture
    def told(self, app: Duly) -> list[WorkerStalled]:
        """What the application's subscribers hear of threads that hang."""
        events: list[WorkerStalled] = []
        app.bus.subscribe(lambda e: isinstance(e, WorkerStalled) and events.append(e))
        return events

    def test_a_hung_claim_stops_the_worker_and_its_bodies_end_well(self, app, hanging, told):
        begun, may_end = threading.Event(), threading.Event()

        @app.task(name="linger")
        def linger() -> int:
            begun.set()
            assert may_end.wait(SOON)
            return 1

        @app.task(name="quick")
        def quick() -> int:
            return 2

        worker = app.worker(concurrency=2, lease=6.0, beat=0.2, stalled_after=1.0)
        with worker:
            run = linger.enqueue()
            assert begun.wait(SOON)
            hung_at = _hang_at("claim.before_write", hanging)
            waiting = quick.enqueue()
            assert hung_at.wait(SOON)

            wait_until(lambda: told, seconds=SOON, what="the hang is told")
            assert [event.thread for event in told] == ["duly-claims"]
            wait_until(lambda: not worker.is_live, seconds=SOON, what="it stops")
            may_end.set()
            if app.store.has_one_writer:  # There the hung claim keeps every writer waiting.
                hanging.set()
            assert run.result(timeout=SOON) == 1
        hanging.set()
        faultpoints.disarm()

        # The claim that hung may have taken it: then the lease has to expire.
        with app.worker(lease=6.0, beat=0.2):
            assert waiting.result(timeout=SOON) == 2

    def test_a_hung_settle_lets_the_lease_expire_when_no_body_runs(
        self, app, store_url, hanging, told
    ):
        other = Duly(store_url)

        def quick() -> int:
            return 2

        task, _ = (each.task(name="quick")(quick) for each in (app, other))

        worker = app.worker(concurrency=1, lease=6.0, beat=0.2, grace=0.2, stalled_after=1.0)
        hung_at = _hang_at("settle.before_write", hanging)
        worker.start()
        run = task.enqueue()
        assert hung_at.wait(SOON)
        wait_until(lambda: told, seconds=SOON, what="the hang is told")
        wait_until(lambda: worker.worker_id is None, seconds=SOON, what="it is gone")
        faultpoints.disarm()
        if app.store.has_one_writer:
            hanging.set()

        with other.worker(lease=6.0, beat=0.2):
            assert run.result(timeout=SOON) == 2
        assert len(told) == 1
        hanging.set()
        worker.stop()
        other.close()

    def test_bodies_that_run_for_long_and_full_slots_are_no_hang(self, app, told):
        begun, may_end = threading.Semaphore(0), threading.Event()

        @app.task(name="linger")
        def linger() -> int:
            begun.release()
            assert may_end.wait(SOON)
            return 1

        with app.worker(concurrency=2, lease=6.0, beat=0.2, stalled_after=1.0) as worker:
            runs = [linger.enqueue() for _ in range(3)]
            assert all(begun.acquire(timeout=SOON) for _ in range(2))
            # Three times as long as a thread may hang.
            assert not may_end.wait(3.0)
            assert worker.is_live
            may_end.set()
            assert [run.result(timeout=SOON) for run in runs] == [1, 1, 1]
        assert told == []

    @pytest.mark.stores("postgres")
    def test_a_row_that_is_locked_for_long_is_no_hang(self, app, store_url, told):
        begun, may_end = threading.Event(), threading.Event()

        @app.task(name="linger")
        def linger() -> int:
            begun.set()
            assert may_end.wait(SOON)
            return 1

        with app.worker(concurrency=2, lease=6.0, beat=0.2, stalled_after=1.0) as worker:
            run = linger.enqueue()
            assert begun.wait(SOON)
            with psycopg.connect(store_url) as holder:
                holder.execute("SELECT FROM duly_runs WHERE id = %s FOR UPDATE", [run.id])
                may_end.set()
                # Three times as long as a thread may hang.
                assert not threading.Event().wait(3.0)
                assert worker.is_live
                assert run.refresh().state == "running"
            assert run.result(timeout=SOON) == 1
        assert told == []


def _hang_at(point: str, may_continue: threading.Event) -> threading.Event:
    """Hang every thread that reaches a fault point; return what tells that one has."""
    reached = threading.Event()

    def hang() -> None:
        reached.set()
        may_continue.wait()

    faultpoints.arm(point, hang)
    return reached


def is_live(shop, worker_id: str) -> bool:
    """Return whether the store calls a worker live."""
    return any(each.id == worker_id and each.state == "live" for each in shop.app.workers.list())


@pytest.mark.process
class TestSupervised:
    """A supervisor replaces the worker process."""

    @pytest.mark.parametrize("point", ["claim.before_write", "settle.before_write"])
    def test_a_worker_with_a_hung_thread_is_replaced(self, shop, store_url, tmp_path, point):
        hanging = {"DULY_FAULTPOINTS": f"{point}=hang"}
        settings = {"stalled_after": 1.0, "grace": 0.5, "lease": 15.0}
        runs = [shop.quick.enqueue(number) for number in range(5)]
        with Tree(store_url, tmp_path, environment=hanging, **settings) as tree:
            stopped = re.compile(r"worker (\S+) stops: its thread \S+ has hung for 1 s")
            wait_until(
                lambda: stopped.search(tree.log.read_text()), seconds=40, what="the hang is told"
            )
            worker_id = stopped.search(tree.log.read_text())[1]
            wait_until(lambda: not is_live(shop, worker_id), seconds=SOON, what="it has ended")
            assert tree.keeper.poll() is None
        with Tree(store_url, tmp_path).ready():
            assert [run.result(timeout=SOON) for run in runs] == list(range(5))
