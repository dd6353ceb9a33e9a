"""What recovery makes of a dead worker: its marks tell what had started and what had not."""

import math
from pathlib import Path

import pytest

from duly import Duly
from duly.clock import monotonic, new_id
from duly.events import ClaimsHandedBack, EventBus
from duly.store.heartbeats import HeartbeatReading
from duly.store.ops.operators import Cancel
from duly.store.ops.runs import ClaimRuns, Enqueue, Want
from duly.store.ops.upkeep import RegisterWorker
from duly.worker.services import maintenance, recovery
from duly.worker.services.recovery import Recoverer, recover_worker
from duly.worker.start_marks import StartMarks, start_marks_path
from tests.servers.processes import wait_until

NEVER = math.inf
RUNNING = (NEVER, -1.0)
"""The times of a body without a timeout, which has no retry left."""


class Dead:
    """A worker that claimed one run and died; its marks are what a test makes of them."""

    def __init__(self, app: Duly, folder: Path) -> None:
        self._app = app
        self._folder = folder
        self.worker_id = new_id()
        self.slots = StartMarks(start_marks_path(folder, self.worker_id), create=4)

    def claim(self, task, lane="thread"):
        """Claim one run of a task."""
        run = task.enqueue()
        register = RegisterWorker(self.worker_id, "host", 1, 15.0, "[]", f'["{task.name}"]')
        wants = ClaimRuns(self.worker_id, (Want(None, lane, 1),), (task.name,))
        _, (claim,) = self._app.store.apply([register, wants])
        return run, claim

    def mark(self, slot: int, claim, times=RUNNING) -> None:
        """Mark the start of a body."""
        self.slots.start(slot, claim.run_id, claim.claim_number, *times)

    def bury(self, *, stopped: bool = False) -> None:
        """Recover the worker."""
        self.slots.close()
        recover_worker(
            self._app.store, self._app.bus, self.worker_id, self._folder, stopped=stopped
        )


@pytest.fixture
def dead(app, tmp_path) -> Dead:
    """A worker that is no more."""
    return Dead(app, tmp_path)


@pytest.fixture
def task(app):
    """A task of the usual kind."""

    @app.task(name="task")
    def task() -> None: ...

    return task


@pytest.fixture
def hold(app):
    """A task that may have its effect at most once."""

    @app.task(name="hold", on_crash="hold")
    def hold() -> None: ...

    return hold


def standing(run) -> tuple:
    """Return what matters of a run: state, attempt, crashes."""
    record = run.refresh().record
    return record.state, record.attempt, record.crashes


def outcomes(run) -> list[str]:
    """Return how the run's attempts ended."""
    return [attempt.outcome for attempt in run.attempts()]


def test_what_had_not_started_goes_back_uncharged(dead, task, hold):
    first, _ = dead.claim(task)
    second, _ = dead.claim(hold, lane="thread-hold")

    dead.bury()

    assert standing(first) == ("queued", 1, 0)
    assert standing(second) == ("queued", 1, 0)
    assert outcomes(first) == outcomes(second) == []


def test_a_started_rerun_goes_back_with_its_next_attempt(dead, task):
    run, claim = dead.claim(task)
    dead.mark(0, claim)

    dead.bury()

    assert standing(run) == ("queued", 2, 1)
    assert outcomes(run) == ["lost"]


def test_a_started_hold_is_interrupted(dead, hold):
    run, claim = dead.claim(hold, lane="thread-hold")
    dead.mark(0, claim)

    dead.bury()

    assert (run.refresh().state, run.cause) == ("interrupted", "crashed")


def test_when_several_had_started_nobody_is_charged(dead, task):
    (one, first), (two, second) = dead.claim(task), dead.claim(task)
    dead.mark(0, first)
    dead.mark(1, second)

    dead.bury()

    assert standing(one) == standing(two) == ("queued", 2, 0)


def test_a_run_that_was_alone_is_charged_though_its_body_had_ended(dead, task):
    run, claim = dead.claim(task)
    dead.mark(0, claim)
    dead.slots.end(0)

    dead.bury()

    assert standing(run) == ("queued", 2, 1)


def test_a_run_next_to_one_whose_end_was_not_recorded_is_not_charged(dead, task):
    (one, first), (two, second) = dead.claim(task), dead.claim(task)
    dead.mark(0, first)
    dead.mark(1, second)
    dead.slots.end(1)

    dead.bury()

    assert standing(one) == standing(two) == ("queued", 2, 0)


def test_an_ended_hold_whose_end_was_not_recorded_is_interrupted(dead, hold):
    run, claim = dead.claim(hold, lane="thread-hold")
    dead.mark(0, claim)
    dead.slots.end(0)

    dead.bury()

    assert run.refresh().state == "interrupted"


def test_what_ran_at_the_end_of_the_grace_goes_back_uncharged(dead, task, hold):
    (rerun, first), (held, second) = dead.claim(task), dead.claim(hold, lane="thread-hold")
    dead.mark(0, first)
    dead.mark(1, second)

    dead.bury(stopped=True)

    assert standing(rerun) == ("queued", 1, 0)
    assert outcomes(rerun) == ["stopped"]
    assert (held.refresh().state, held.cause) == ("interrupted", "stopped")


def test_what_was_overdue_timed_out_and_has_no_retry_left(dead, task):
    run, claim = dead.claim(task)
    dead.mark(0, claim, (monotonic() - 1, -1.0))

    dead.bury(stopped=True)

    assert (run.refresh().state, run.cause) == ("failed", "timed_out")
    assert outcomes(run) == ["timed_out"]


def test_what_was_overdue_uses_the_retry_its_task_allows(dead, task):
    run, claim = dead.claim(task)
    dead.mark(0, claim, (monotonic() - 1, 60.0))

    dead.bury(stopped=True)

    assert standing(run) == ("queued", 2, 0)
    assert run.record.retries_used == 1
    assert run.record.due_at - run.record.created_at >= 60_000_000


def test_without_marks_everything_may_have_started(dead, task, hold):
    (rerun, _), (held, _) = dead.claim(task), dead.claim(hold, lane="thread-hold")
    dead.slots.remove()

    dead.bury()

    assert standing(rerun) == ("queued", 2, 0)
    assert (held.refresh().state, held.cause) == ("interrupted", "crashed")


def test_marks_of_another_boot_are_not_believed(dead, hold):
    run, _ = dead.claim(hold, lane="thread-hold")
    with dead.slots.path.open("r+b") as file:
        file.seek(8)
        file.write(bytes(16))

    dead.bury()

    assert run.refresh().state == "interrupted"


def test_a_cancel_that_was_asked_for_is_kept_over_a_death(app, dead, task):
    run, claim = dead.claim(task)
    dead.mark(0, claim)
    app.store.do(Cancel(run.id, "ann"))

    dead.bury()

    assert (run.refresh().state, run.cause) == ("cancelled", "requested")


def test_what_a_worker_leaves_behind_is_cleared_away(dead, task, tmp_path):
    dead.claim(task)

    dead.bury()

    assert list(tmp_path.glob("*.slots")) == []


@pytest.mark.parametrize("has_ended", [False, True], ids=["in its body", "after its body"])
@pytest.mark.parametrize("neighbours", [0, 1], ids=["alone", "next to another"])
def test_a_run_whose_process_always_dies_is_watched_alone_and_ends_after_the_crash_limit(
    app, task, tmp_path, has_ended, neighbours
):
    run = task.enqueue()
    lanes = []
    while not run.refresh().is_final and len(lanes) < 9:
        lane = run.record.lane
        lanes.append(lane)
        dead = Dead(app, tmp_path)
        register = RegisterWorker(dead.worker_id, "host", 1, 15.0, "[]", '["task"]')
        wants = ClaimRuns(dead.worker_id, (Want(None, lane, 1),), ("task",))
        _, (claim,) = app.store.apply([register, wants])
        dead.mark(0, claim)
        for slot in range(1, neighbours + 1):
            if lane != "suspect":
                dead.slots.start(slot, new_id(), 1, *RUNNING)
        if has_ended:
            dead.slots.end(0)
        dead.bury()

    expected = ["thread", "thread", "suspect", "suspect", "suspect"]
    assert lanes == (expected if neighbours else expected[:3])
    assert (run.refresh().state, run.cause) == ("failed", "crashed")
    assert set(outcomes(run)) == {"lost"}


class TestRecoverer:
    """The service that watches all other workers."""

    @pytest.fixture
    def time(self, passing):
        """Time that passes when a test says so."""
        return passing(recovery)

    def watching(self, app: Duly, folder: Path, *, lease: float) -> Recoverer:
        """Return a watcher with a lease of its own, whose beats succeed."""
        return Recoverer(
            app.store,
            EventBus(),
            folder,
            own_ids=lambda: frozenset({"me"}),
            beats_since=lambda: 0.0,
            lease=lease,
            beat=5.0,
        )

    @pytest.fixture
    def frozen(self, app, task, monkeypatch):
        """A worker whose lease is 15 s, which holds a run and whose counter stands still."""
        worker_id = new_id()
        run = task.enqueue()
        register = RegisterWorker(worker_id, "host", 1, 15.0, "[]", '["task"]')
        app.store.apply([register, ClaimRuns(worker_id, (Want(None, "thread", 1),), ("task",))])
        pulse = app.store.heartbeats()
        monkeypatch.setattr(pulse, "read", lambda: {worker_id: HeartbeatReading(0)})
        monkeypatch.setattr(app.store, "heartbeats", lambda: pulse)
        return run

    def test_a_frozen_worker_is_recovered_after_its_lease(self, app, frozen, tmp_path, time):
        watcher = self.watching(app, tmp_path, lease=15.0)

        states = []
        for _ in range(4):
            watcher.tick()
            states.append(str(frozen.refresh().state))
            time.advance(5.0)

        assert states == ["running", "running", "running", "queued"]

    def test_a_watcher_that_is_kept_from_reading_takes_nobody_for_dead_too_soon(
        self, app, frozen, tmp_path, time, monkeypatch
    ):
        watcher = self.watching(app, tmp_path, lease=15.0)
        pulse = app.store.heartbeats()
        seen = pulse.read()

        def late() -> dict[str, HeartbeatReading]:
            time.advance(10.0)  # A body holds the interpreter, say; what it reads then is new.
            return seen

        with monkeypatch.context() as patch:
            patch.setattr(pulse, "read", late)
            watcher.tick()
        states = []
        for _ in range(2):
            time.advance(7.5)
            watcher.tick()
            states.append(str(frozen.refresh().state))

        assert states == ["running", "queued"]

    def test_a_short_lease_of_the_watcher_does_not_shorten_others(
        self, app, frozen, tmp_path, time
    ):
        watcher = self.watching(app, tmp_path, lease=3.0)

        states = []
        for _ in range(4):
            watcher.tick()
            states.append(str(frozen.refresh().state))
            time.advance(5.0)

        assert states == ["running", "running", "running", "queued"]


def test_a_worker_hands_back_what_it_never_heard_of(app, monkeypatch):
    monkeypatch.setattr(maintenance, "_RECONCILE_PAUSE", 0.05)
    events = []
    app.bus.subscribe(events.append)

    @app.task(name="hello", queue="apart")
    def hello() -> str:
        return "hello"

    with app.worker(queues="apart") as worker:
        hello.enqueue().result(timeout=20)
        lost = app.store.apply(
            [
                Enqueue(new_id(), hello.name, "elsewhere", "thread", 0, "[[],{}]"),
                ClaimRuns(worker.worker_id, (Want(None, "thread", 1),), (hello.name,)),
            ]
        )[0].run_id

        wait_until(lambda: app.runs.get(lost).state == "queued", seconds=20, what="it goes back")

    (handed_back,) = [event for event in events if isinstance(event, ClaimsHandedBack)]
    assert handed_back.run_ids == (lost,)
