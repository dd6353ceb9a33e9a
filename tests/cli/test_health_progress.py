"""`duly health` reports a live worker that claims nothing, and accepts healthy workers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import pytest

from duly import Duly
from duly.api import idle_workers
from duly.clock import new_id
from duly.core.served_queues import ServedQueues
from duly.core.states import SlotKind
from duly.limits import TICK_BATCH, UNSERVED_SECONDS
from duly.store.ops.operators import LimitQueue
from duly.store.ops.runs import ClaimRuns, Want
from duly.store.ops.upkeep import Tick
from duly.store.protocol import Store
from duly.store.store_factory import open_store
from duly.worker.registration import registration
from tests.store.conformance.stores import opened_tables

LONG = UNSERVED_SECONDS + 30


@pytest.fixture(autouse=True)
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The events between the checks of one command, in order. There is at least one check."""
    between: list[Callable[[], None]] = [lambda: None]

    class Pause:
        def wait(self, _seconds: float) -> None:
            between.pop(0)()

    class Threading:
        Event = Pause

    monkeypatch.setattr(idle_workers, "threading", Threading)
    monkeypatch.setattr(idle_workers, "monotonic", lambda: 0.0 if between else 10**9)
    return between


class Idle:
    """A live worker that does nothing, like a worker whose engine hangs."""

    def __init__(self, store: Store, lanes: Mapping[str, str], queues: Sequence[str]) -> None:
        self.id = new_id()
        self._store = store
        self._tasks = tuple(lanes)
        self._life = store.live(self.id)
        store.do(registration(self.id, 3600.0, ServedQueues(tuple(queues)), lanes, {}))
        store.heartbeats().beat([self.id])

    def claim(self) -> int:
        """Claim the ready runs. Return the number of runs."""
        want = Want(None, SlotKind.THREAD, 10)
        claims = self._store.do(ClaimRuns(self.id, (want,), self._tasks))
        return len(claims)


@pytest.fixture
def idle_worker(app: Duly, url: str) -> Iterator[Callable[..., Idle]]:
    """Makes idle workers on their own store, because commands close the application's."""
    lanes = app.registry.lanes_by_task(only_carried=False)
    with closing(open_store(url)) as store:

        def make(*, tasks: Mapping[str, str] = lanes, queues: Sequence[str] = ()) -> Idle:
            return Idle(store, tasks, queues)

        yield make


@pytest.fixture
def age(url: str) -> Callable[..., None]:
    """Backdates the start of workers, or the time at which runs became ready."""

    def age(*columns: str) -> None:
        passed = f"{LONG * 1_000_000:.0f}" if url.startswith("sqlite") else f"interval '{LONG} s'"
        with opened_tables(url) as tables:
            for each in columns:
                table, column = each.split(".")
                tables.execute(f"UPDATE {table} SET {column} = {column} - {passed}")  # noqa: S608

    return age


OLD = ("duly_workers.started_at", "duly_runs.due_at")


def test_a_live_worker_that_leaves_a_ready_run_unclaimed_is_named(cli, run_of, age, idle_worker):
    run_of("add", 1)
    idle = idle_worker()
    age(*OLD)

    result = cli("health")

    assert result.exit_code == 1
    assert f"worker {idle.id} (pid " in result.stdout
    assert "although a run of queue 'default', which it serves, has been ready for 1 min 30 s" in (
        result.stdout
    )
    assert cli("health", "--no-worker").exit_code == 0


def test_a_full_worker_does_not_hide_an_idle_worker(cli, run_of, age, idle_worker):
    full, idle = idle_worker(), idle_worker()
    run_of("add", 1)
    assert full.claim() == 1
    run_of("add", 2)
    age(*OLD)

    result = cli("health")

    assert result.exit_code == 1
    assert (idle.id in result.stdout, full.id in result.stdout) == (True, False)


def test_runs_of_a_task_that_no_live_worker_registers_are_named(app, cli, run_of, idle_worker):
    idle_worker(tasks={"renamed": SlotKind.THREAD})
    run_of("add", 1)
    run_of("add", 2)
    before_upkeep = cli("health")
    app.store.do(Tick(TICK_BATCH))

    for result in (before_upkeep, cli("health")):
        assert result.exit_code == 1
        assert "of orders:add wait" in result.stdout
        assert "no live worker knows the task" in result.stdout
    assert "2 runs of orders:add" in cli("health").stdout
    assert cli("health", "--no-worker").exit_code == 0


def test_runs_in_a_queue_that_no_live_worker_serves_are_named(cli, run_of, idle_worker):
    idle_worker(queues=["mail"])
    run_of("add", 1)

    result = cli("health")

    assert result.exit_code == 1
    assert "runs of orders:add wait in queue 'default', and no live worker that" in result.stdout
    assert "-q default" in cli("doctor").stdout


class TestHealthy:
    """Workers with a reason not to claim a run, or just before the claim."""

    def test_a_worker_with_long_bodies_may_have_full_slots(self, cli, run_of, age, idle_worker):
        idle = idle_worker()
        run_of("add", 1)
        assert idle.claim() == 1
        run_of("add", 2)
        age(*OLD)

        assert cli("health").exit_code == 0

    def test_a_paused_queue_keeps_its_runs(self, app, cli, run_of, age, idle_worker):
        run_of("add", 1)
        idle_worker()
        age(*OLD)
        app.queues.pause("default")

        assert cli("health").exit_code == 0

    def test_a_full_limit_of_the_queue_keeps_its_runs(self, app, cli, run_of, age, idle_worker):
        idle_worker()
        other = idle_worker()
        run_of("add", 1)
        assert other.claim() == 1
        app.store.do(LimitQueue("default", 1, "me", ""))
        run_of("add", 2)
        age(*OLD)

        assert cli("health").exit_code == 0

    def test_a_run_that_has_just_become_ready_may_wait(self, cli, run_of, age, idle_worker):
        run_of("add", 1)
        idle_worker()
        age("duly_workers.started_at")

        assert cli("health").exit_code == 0

    def test_a_worker_that_has_just_started_may_be_idle(self, cli, run_of, age, idle_worker):
        run_of("add", 1)
        idle_worker()
        age("duly_runs.due_at")

        assert cli("health").exit_code == 0

    def test_health_calls_no_worker_idle_because_of_runs_that_it_does_not_serve(
        self, cli, run_of, age, idle_worker
    ):
        run_of("add", 1)
        idle_worker(queues=("mail",))
        idle_worker(tasks={"other:task": "thread"})
        age(*OLD)

        words = cli("health").stdout
        assert ("no live worker" in words, "is idle" in words) == (True, False)

    def test_a_run_that_is_claimed_between_two_checks_is_no_problem(
        self, cli, run_of, age, idle_worker, looks
    ):
        run_of("add", 1)
        idle = idle_worker()
        age(*OLD)
        looks[:] = [lambda: None, lambda: None, idle.claim]

        assert cli("health").exit_code == 0
        assert looks == [], "the command checked until the run was claimed"

    def test_a_working_worker_claims_a_run_that_has_waited_for_long(
        self, cli, run_of, age, app, url
    ):
        app.queues.pause("default")
        run = run_of("add", 1)
        other = Duly(url)
        other.registry = app.registry
        with other.worker():
            age("duly_workers.started_at")
            app.queues.resume("default")

            assert cli("health").exit_code == 0
            assert run.result(timeout=20) == 1
        other.close()
