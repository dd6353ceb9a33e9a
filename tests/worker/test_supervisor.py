"""Keepers and children, killed, frozen, stopped and poisoned: nothing lost or written twice."""

import os
import signal
import time
from pathlib import Path

import pytest

from duly.store.store_factory import runtime_folder
from tests.servers.processes import is_running, wait_until
from tests.worker.trees import BEAT, LEASE, Notes, Tree

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("shop")]


def outcomes(run) -> list[str]:
    """Return how every attempt of a run ended."""
    return [attempt.outcome for attempt in run.attempts()]


class TestKilledChild:
    """kill -9 of one child of two."""

    @pytest.mark.timing
    def test_its_reruns_run_elsewhere_within_a_second_and_its_holds_are_interrupted(
        self, shop, notes, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path, processes=2, concurrency=20).ready() as tree:
            reruns = [shop.linger.enqueue(*notes.arguments(n)) for n in range(6)]
            holds = [shop.linger_hold.enqueue(*notes.arguments(n)) for n in range(10, 16)]
            starts = notes.wait_for_starts(12)
            victim = next(line.pid for line in starts if line.number < 10)
            struck = {line.number for line in starts if line.pid == victim}

            tree.kill(victim)
            killed_at = time.monotonic()
            lost = {n for n in struck if n < 10}
            wait_until(
                lambda: all(len(notes.starts(n)) == 2 for n in lost),
                seconds=20,
                what="they run elsewhere",
            )
            took = time.monotonic() - killed_at
            notes.open_gate()

            for number, run in enumerate(reruns):
                assert run.result(timeout=20) == number
                assert outcomes(run) == (["lost", "returned"] if number in lost else ["returned"])
            for number, run in enumerate(holds, 10):
                wait_until(lambda run=run: run.refresh().is_final, seconds=20, what="the end")
                expected = ("interrupted", "crashed") if number in struck else ("succeeded", None)
                assert (run.state, run.cause) == expected
                assert len(notes.starts(number)) == 1
        assert lost
        assert took < 1.0
        assert all(line.pid != victim for line in notes.ends())

    def test_what_it_had_claimed_and_not_started_simply_runs(
        self, shop, notes, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path, processes=1, concurrency=2).ready() as tree:
            # Short bodies make it claim ahead of its two slots.
            for run in shop.app.enqueue_many(shop.quick.call(n) for n in range(150)):
                run.result(timeout=30)
            (victim,) = tree.workers()
            runs = shop.app.enqueue_many(shop.linger.call(*notes.arguments(n)) for n in range(20))
            notes.wait_for_starts(2)
            claimed = len(shop.app.runs.list(state="running"))

            tree.kill(victim)
            notes.open_gate()
            results = [run.result(timeout=30) for run in runs]

            assert claimed > 2, "nothing was claimed ahead, so this shows nothing"
            assert results == list(range(20))
            started = {line.number for line in notes.starts() if line.pid == victim}
            for number, run in enumerate(runs):
                expected = ["lost", "returned"] if number in started else ["returned"]
                assert outcomes(run) == expected

    def test_its_subprocess_dies_with_it(self, shop, notes, store_url, tmp_path):
        with Tree(store_url, tmp_path, processes=1).ready() as tree:
            run = shop.linger_process.enqueue(*notes.arguments())
            (start,) = notes.wait_for_starts(1)
            (child,) = tree.workers()
            assert start.pid != child

            tree.kill(child)

            wait_until(lambda: not is_running(start.pid), seconds=10, what="the subprocess dies")
            notes.open_gate()
            assert run.result(timeout=30) == 0
        assert outcomes(run) == ["lost", "returned"]
        assert [line.pid == start.pid for line in notes.ends()] == [False]


@pytest.mark.timing
def test_a_whole_tree_that_was_killed_is_recovered_within_its_lease_and_two_seconds(
    shop, notes, store_url, tmp_path
):
    with Tree(store_url, tmp_path).ready() as first:
        run = shop.linger.enqueue(*notes.arguments(1))
        hold = shop.linger_hold.enqueue(*notes.arguments(2))
        notes.wait_for_starts(2)
        children = first.children()
        with Tree(store_url, tmp_path).ready() as second:
            first.keeper.kill()
            killed_at = time.monotonic()
            # Its children die with it, whatever they are at.
            wait_until(
                lambda: not any(map(is_running, children)), seconds=10, what="its children die"
            )
            again = notes.wait_for_starts(3)[2]
            took = time.monotonic() - killed_at
            wait_until(lambda: hold.refresh().is_final, seconds=30, what="the hold's end")
            assert again.pid in second.children()
            notes.open_gate()
            assert run.result(timeout=20) == 1

    assert took < LEASE + 2.0
    assert outcomes(run) == ["lost", "returned"]
    assert (hold.state, hold.cause) == ("interrupted", "crashed")
    assert len(notes.starts(2)) == 1


@pytest.mark.stores("sqlite-wal")  # The kernel's matter, not the store's.
def test_children_die_with_their_keeper_long_before_their_lease_is_over(
    shop, notes, store_url, tmp_path
):
    with Tree(store_url, tmp_path, processes=2, lease=60, beat=5).ready() as tree:
        shop.linger.enqueue(*notes.arguments(1))
        subprocess = shop.linger_process.enqueue(*notes.arguments(2))
        starts = notes.wait_for_starts(2)
        pids = {*tree.children(), *(line.pid for line in starts)}
        assert len(pids) == 3

        tree.keeper.kill()

        wait_until(lambda: not any(map(is_running, pids)), seconds=10, what="all of them die")
    assert subprocess.refresh().state == "running"


class TestFrozen:
    """SIGSTOP past the lease, then SIGCONT: no stale write, no second live body."""

    @pytest.fixture
    def held(self, shop, notes, store_url, tmp_path):
        """A tree that holds a run each of three kinds, while a worker waits to take over.

        That one is not what is frozen here, so it need not be a tree.
        """
        with Tree(store_url, tmp_path).ready() as tree:
            runs = [
                task.enqueue(*notes.arguments(number))
                for number, task in enumerate((shop.linger, shop.linger_async, shop.linger_hold))
            ]
            notes.wait_for_starts(3)
            with shop.app.worker(lease=LEASE, beat=BEAT):
                yield tree, runs
                # If the test has failed, its bodies still wait.
                notes.open_gate()

    def check(self, notes: Notes, runs, old: list[int]) -> None:
        """Check that the reruns were taken over, the hold interrupted, and nothing written late."""
        rerun, coroutine, hold = runs
        for number, run in ((0, rerun), (1, coroutine)):
            assert run.result(timeout=20) == number
            assert outcomes(run) == ["lost", "returned"]
            assert run.record.claim_number == 2
            assert [line.fence for line in notes.starts(number)] == [1, 2]
        wait_until(lambda: hold.refresh().is_final, seconds=20, what="the hold's end")
        assert (hold.state, hold.cause) == ("interrupted", "crashed")
        assert len(notes.starts(2)) == 1
        assert not any(line.pid in old for line in notes.ends()), "a stale body went on"

    def wait_for_takeover(self, notes: Notes) -> None:
        """Wait until both reruns have begun again."""
        wait_until(
            lambda: all(len(notes.starts(n)) == 2 for n in (0, 1)),
            seconds=30,
            what="they run elsewhere",
        )

    def test_the_child(self, held, notes):
        tree, runs = held
        (child,) = tree.workers()

        tree.freeze(child)
        self.wait_for_takeover(notes)
        # Its keeper has killed it before anybody took over.
        assert not is_running(child)
        tree.thaw(child)
        notes.open_gate()

        self.check(notes, runs, [child])
        assert tree.ready().keeper.poll() is None

    def test_the_keeper(self, held, notes):
        tree, runs = held
        (child,) = tree.workers()

        tree.freeze(tree.keeper.pid)
        self.wait_for_takeover(notes)
        # Nobody attended to it, so it was killed before anybody took over.
        assert not is_running(child)
        tree.thaw(tree.keeper.pid)
        notes.open_gate()

        self.check(notes, runs, [child])
        # The keeper goes on with a child of a new identity.
        tree.ready()
        assert tree.keeper.poll() is None

    @pytest.mark.parametrize("tether", [False, True], ids=["but the tether", "all"])
    def test_keeper_and_child(self, held, notes, tether):
        tree, runs = held
        (child,) = tree.workers()
        frozen = [tree.keeper.pid, child, *(tree.watchdogs() if tether else ())]

        tree.freeze(*frozen)
        self.wait_for_takeover(notes)
        # The kernel has killed it before anybody took over: it will do nothing when it wakes.
        assert not is_running(child)
        tree.thaw(*frozen)
        notes.open_gate()

        self.check(notes, runs, [child])
        tree.ready()
        assert tree.keeper.poll() is None

    def test_a_freeze_shorter_than_the_lease_costs_nothing(self, held, notes):
        tree, runs = held
        (child,) = tree.workers()

        tree.freeze(tree.keeper.pid, child)
        time.sleep(LEASE / 4)
        tree.thaw(child, tree.keeper.pid)
        notes.open_gate()

        assert [run.result(timeout=20) for run in runs] == [0, 1, 2]
        assert [outcomes(run) for run in runs] == [["returned"]] * 3
        assert {line.pid for line in notes.ends()} == {child}


def test_a_beat_that_is_stuck_for_longer_than_the_lease_ends_no_worker(
    shop, notes, store_url, tmp_path
):
    """As when a name server answers too late: no timeout of the store bounds that."""
    stuck = tmp_path / "stuck"
    with Tree(store_url, tmp_path, stuck_beats=stuck).ready() as tree:
        (child,) = tree.workers()
        runs = [
            task.enqueue(*notes.arguments(number))
            for number, task in enumerate((shop.linger, shop.linger_hold))
        ]
        notes.wait_for_starts(2)

        stuck.touch()
        time.sleep(2 * LEASE)
        assert tree.children() == [child]
        notes.open_gate()
        wait_until(lambda: len(notes.ends()) == 2, seconds=20, what="the bodies end")
        late = shop.quick.enqueue(7)
        time.sleep(BEAT)
        # Its lease is over: it begins nothing and records nothing.
        states = {str(run.refresh().state) for run in runs}
        unclaimed = str(late.refresh().state)
        stuck.unlink()

        assert (states, unclaimed) == ({"running"}, "queued")
        assert [run.result(timeout=20) for run in runs] == [0, 1]
        assert late.result(timeout=20) == 7
        assert tree.children() == [child]
    assert [outcomes(run) for run in runs] == [["returned"]] * 2


class TestTethered:
    """What is tied to a keeper: no more than that makes a difference."""

    def test_a_body_that_holds_the_interpreter_past_the_lease_lives_on(
        self, shop, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path).ready() as tree:
            (child,) = tree.workers()

            assert shop.hog.enqueue(LEASE * 1.5).result(timeout=40) == child

    @pytest.mark.stores("sqlite-wal")  # The kernel's matter, not the store's.
    def test_without_its_tether_it_ends_and_the_keeper_goes_on(
        self, shop, notes, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path, lease=60, beat=5).ready() as tree:
            run = shop.linger_process.enqueue(*notes.arguments())
            (start,) = notes.wait_for_starts(1)
            pids = [start.pid, *tree.children()]
            (tether,) = tree.watchdogs()
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                tree.kill(tether, number)
            assert is_running(tether)

            tree.kill(tether)

            wait_until(lambda: not any(map(is_running, pids)), seconds=10, what="all of them die")
            notes.open_gate()
            assert run.result(timeout=20) == 0
            assert outcomes(run) == ["lost", "returned"]
            assert len(tree.ready().watchdogs()) == 1


class TestStopping:
    """SIGTERM, once and twice."""

    def test_it_stops_claiming_waits_for_the_grace_and_applies_on_crash_to_the_rest(
        self, shop, notes, store_url, tmp_path
    ):
        other = Notes(tmp_path / "other")
        Path(tmp_path / "other").mkdir()
        with Tree(store_url, tmp_path, grace=1.0).ready() as tree:
            quick = shop.linger.enqueue(*other.arguments(5))
            rerun = shop.linger.enqueue(*notes.arguments(0))
            coroutine = shop.linger_async.enqueue(*notes.arguments(1))
            hold = shop.linger_hold.enqueue(*notes.arguments(2))
            notes.wait_for_starts(3)
            other.wait_for_starts(1)

            tree.terminate()
            time.sleep(0.4)
            late = shop.quick.enqueue(7)
            other.open_gate()
            status = tree.ended()

        assert status == 0
        assert quick.result(timeout=5) == 5
        assert late.refresh().state == "queued"
        for run in (rerun, coroutine):
            assert run.refresh().state == "queued"
            assert (run.record.attempt, run.record.crashes) == (1, 0)
            assert outcomes(run) == ["stopped"]
        assert (hold.refresh().state, hold.cause) == ("interrupted", "stopped")
        assert {worker.state for worker in shop.app.workers.list()} == {"stopped"}

    @pytest.mark.stores("sqlite-wal")  # What a signal means is the same on any store.
    def test_a_tree_without_work_stops_at_once(self, store_url, tmp_path):
        with Tree(store_url, tmp_path, processes=2, grace=30).ready() as tree:
            begun = time.monotonic()
            tree.terminate()

            assert tree.ended() == 0
        assert time.monotonic() - begun < 5

    @pytest.mark.stores("sqlite-wal")  # What a signal means is the same on any store.
    def test_a_second_signal_stops_at_once(self, shop, notes, store_url, tmp_path):
        with Tree(store_url, tmp_path, grace=60).ready() as tree:
            rerun = shop.linger.enqueue(*notes.arguments(0))
            hold = shop.linger_hold.enqueue(*notes.arguments(1))
            notes.wait_for_starts(2)

            tree.terminate()
            time.sleep(0.5)
            assert tree.keeper.poll() is None
            begun = time.monotonic()
            tree.terminate()
            status = tree.ended()

        assert status == 0
        assert time.monotonic() - begun < 5
        assert (rerun.refresh().state, rerun.record.attempt) == ("queued", 1)
        assert (hold.refresh().state, hold.cause) == ("interrupted", "stopped")
        assert notes.ends() == []

    @pytest.mark.stores("sqlite-wal")  # What a signal means is the same on any store.
    def test_a_signal_to_keeper_and_child_at_once_is_one_signal(
        self, shop, notes, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path, grace=60).ready() as tree:
            run = shop.linger.enqueue(*notes.arguments(0))
            notes.wait_for_starts(1)

            # As systemd does it, unless its unit says KillMode=mixed.
            for pid in (*tree.children(), tree.keeper.pid):
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.5)
            notes.open_gate()
            status = tree.ended()

        assert status == 0
        assert run.refresh().state == "succeeded"
        assert outcomes(run) == ["returned"]

    def test_a_child_that_died_unseen_before_the_signal_is_settled_like_any_other(
        self, shop, notes, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path, processes=2).ready() as tree:
            run = shop.linger.enqueue(*notes.arguments(0))
            hold = shop.linger_hold.enqueue(*notes.arguments(1))
            notes.wait_for_starts(2)
            tree.freeze(tree.keeper.pid)
            for child in tree.workers():
                tree.kill(child)
            wait_until(lambda: not tree.children(), seconds=10, what="its children are dead")

            tree.terminate()
            tree.thaw(tree.keeper.pid)

            assert tree.ended() == 0, tree.log.read_text()
        assert run.refresh().state == "queued"
        # Which of the two the keeper hears of first when it is thawed is up to the system.
        assert hold.refresh().state == "interrupted"
        assert hold.cause in {"crashed", "stopped"}

    def test_what_was_stopped_goes_on_in_the_next_worker(self, shop, notes, store_url, tmp_path):
        with Tree(store_url, tmp_path, grace=0.1).ready() as first:
            run = shop.linger.enqueue(*notes.arguments(3))
            notes.wait_for_starts(1)
            first.terminate()
            first.ended()
        notes.open_gate()
        with shop.app.worker():
            assert run.result(timeout=20) == 3

        assert [line.attempt for line in notes.starts()] == [1, 1]


def test_a_poisonous_task_ends_failed_and_others_are_unaffected(shop, store_url, tmp_path):
    with Tree(store_url, tmp_path, processes=1).ready() as tree:
        poison = shop.poison.enqueue()
        quick = shop.app.enqueue_many(shop.quick.call(n) for n in range(50))

        assert [run.result(timeout=40) for run in quick] == list(range(50))
        wait_until(lambda: poison.refresh().is_final, seconds=40, what="the poison's end")
        assert tree.keeper.poll() is None
        assert shop.quick.enqueue(1).result(timeout=20) == 1

    assert (poison.state, poison.cause) == ("failed", "crashed")
    assert set(outcomes(poison)) == {"lost"}
    assert len(outcomes(poison)) <= 5


@pytest.mark.stores("sqlite-wal")  # Which processes there are is the same on any store.
class TestStartedPrograms:
    """Programs that a body started: they end with its worker, before another attempt begins."""

    @pytest.fixture
    def run(self, shop, notes):
        """A run whose body starts programs in its group, in other sessions and orphaned."""
        yield shop.starts_programs.enqueue(notes.log)
        for pid in filter(is_running, shop.noted_programs(notes.log)):
            os.kill(pid, signal.SIGKILL)

    @pytest.fixture
    def tree(self, shop, run, notes, store_url, tmp_path):
        """A supervisor with one worker, whose body has started the programs."""
        assert run.refresh().state == "queued"
        with Tree(store_url, tmp_path).ready() as tree:
            wait_until(
                lambda: len(shop.noted_programs(notes.log)) == 3,
                seconds=30,
                what="the programs have started",
            )
            yield tree

    def check(self, shop, notes, run) -> None:
        assert run.result(timeout=30) == []
        assert not any(map(is_running, shop.noted_programs(notes.log)))

    def test_they_end_with_a_worker_that_is_killed(self, shop, notes, tree, run):
        (worker,) = tree.workers()

        tree.kill(worker)

        self.check(shop, notes, run)

    def test_they_end_with_a_supervisor_that_is_killed(
        self, shop, notes, tree, run, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path).ready():
            tree.keeper.kill()

            self.check(shop, notes, run)

    def test_they_end_before_others_take_over_from_a_frozen_supervisor(
        self, shop, notes, tree, run, store_url, tmp_path
    ):
        with Tree(store_url, tmp_path).ready():
            tree.freeze(tree.keeper.pid)

            self.check(shop, notes, run)
            tree.thaw(tree.keeper.pid)

    def test_they_end_with_a_supervisor_that_stops(self, shop, notes, tree, run):
        tree.terminate()
        tree.terminate()

        assert tree.ended() == 0
        assert not any(map(is_running, shop.noted_programs(notes.log)))
        assert run.refresh().state == "queued"


@pytest.mark.stores("sqlite-wal")  # What a signal means is the same on any store.
def test_processes_that_a_body_forks_are_ended_by_a_signal_as_anywhere(shop, store_url, tmp_path):
    with Tree(store_url, tmp_path).ready() as tree:
        # A signal may come before the new process has had its first turn.
        ends = shop.terminates_processes.enqueue(5).result(timeout=50)
        # A pool ends its processes by SIGTERM.
        numbers = shop.uses_a_pool.enqueue([-1, -2]).result(timeout=30)
        tree.terminate()

        assert ends == [-signal.SIGTERM] * 5
        assert numbers == [1, 2]
        # The worker itself still takes its signals.
        assert tree.ended() == 0


@pytest.mark.stores("sqlite-wal")  # What a fork copies is the same on any store.
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_a_forked_process_that_a_body_leaves_by_an_error_is_no_second_worker(
    shop, notes, store_url, tmp_path, kind
):
    forking = shop.leaves_a_fork if kind == "def" else shop.leaves_a_fork_async
    with Tree(store_url, tmp_path).ready():
        others = [shop.linger_async.enqueue(*notes.arguments(n)) for n in range(3)]
        notes.wait_for_starts(3)

        assert forking.enqueue().result(timeout=20) == 1
        notes.open_gate()

        assert [run.result(timeout=20) for run in others] == [0, 1, 2]
    assert sorted(line.number for line in notes.ends()) == [0, 1, 2]


def test_a_worker_survives_bodies_that_stop_its_loop_and_close_its_application(
    shop, notes, store_url, tmp_path
):
    with Tree(store_url, tmp_path).ready() as tree:
        (child,) = tree.workers()
        stopping = shop.stops_the_loop.enqueue(notes.gate)
        closing = [shop.closes_the_app.enqueue(elsewhere=flag) for flag in (False, True)]
        counts = [run.result(timeout=30) for run in closing]
        coroutine = shop.linger_async.enqueue(*notes.arguments(5))
        notes.wait_for_starts(1)
        notes.open_gate()

        assert (stopping.result(timeout=20), coroutine.result(timeout=20)) == (1, 5)
        # Each of them counted the runs: at least its own and the one before it.
        assert all(count >= 2 for count in counts)
        assert shop.quick.enqueue(1).result(timeout=20) == 1
        assert tree.workers() == [child]
        tree.terminate()
        assert tree.ended() == 0


@pytest.mark.stores("sqlite-wal")  # Which threads there are is the same on any store.
@pytest.mark.parametrize("thread", ["duly-claims", "duly-settler"])
def test_a_worker_that_has_lost_a_thread_is_replaced(shop, store_url, tmp_path, thread):
    with Tree(store_url, tmp_path).ready() as tree:
        (before,) = tree.workers()
        shop.ends_a_thread.enqueue(thread)
        # The thread meets the error at its next turn, which this run causes.
        run = shop.quick.enqueue(1)

        wait_until(lambda: not is_running(before), seconds=30, what="the worker is replaced")
        assert run.result(timeout=30) == 1
        assert tree.keeper.poll() is None


@pytest.mark.stores("sqlite-wal")  # How a process ends is the same on any store.
class TestEndsItsProcess:
    """A body that ends the process it runs in, in ways that look like an ordered end."""

    def wait_until_failed(self, run) -> None:
        wait_until(lambda: run.refresh().is_final, seconds=40, what="the run's end")
        assert (run.state, run.cause) == ("failed", "crashed")
        assert set(outcomes(run)) == {"lost"}
        assert len(outcomes(run)) <= 5

    @pytest.mark.parametrize("drain", [False, True], ids=["serving", "draining"])
    def test_a_body_that_exits_with_status_0_fails_at_the_crash_limit(
        self, shop, notes, store_url, tmp_path, drain
    ):
        run = shop.exits.enqueue(notes.log, 0)
        with Tree(store_url, tmp_path, drain=drain) as tree:
            self.wait_until_failed(run)
            if drain:
                assert tree.ended(seconds=40) == 0

        assert len(notes.starts()) == len(outcomes(run))

    def test_a_body_that_executes_another_program_in_its_process_fails_at_the_crash_limit(
        self, shop, notes, store_url, tmp_path
    ):
        run = shop.executes.enqueue(notes.log)
        with Tree(store_url, tmp_path):
            self.wait_until_failed(run)
            assert shop.quick.enqueue(1).result(timeout=20) == 1

        assert len(notes.starts()) == len(outcomes(run))

    def test_a_run_next_to_one_that_exits_with_status_0_runs_a_few_times_at_most(
        self, shop, notes, store_url, tmp_path
    ):
        neighbour = shop.linger.enqueue(*notes.arguments(1))
        with Tree(store_url, tmp_path).ready():
            notes.wait_for_starts(1)
            run = shop.exits.enqueue(notes.log, 0)
            self.wait_until_failed(run)
            notes.open_gate()
            assert neighbour.result(timeout=20) == 1

        assert outcomes(neighbour)[-1] == "returned"
        assert len(outcomes(neighbour)) <= 3

    def test_a_process_that_dies_after_its_body_returned_is_charged(
        self, shop, store_url, tmp_path
    ):
        # Its end is not recorded: each child is killed as it is about to commit that.
        killing = {"DULY_FAULTPOINTS": "settle.before_commit=kill"}
        run = shop.quick.enqueue(1)
        with Tree(store_url, tmp_path, environment=killing):
            self.wait_until_failed(run)

    def test_a_thread_that_a_body_left_behind_and_that_ends_the_process_is_charged(
        self, shop, notes, store_url, tmp_path
    ):
        run = shop.exits_after_return.enqueue(notes.log)
        with Tree(store_url, tmp_path):
            self.wait_until_failed(run)

        assert len(notes.starts()) == len(outcomes(run))


def test_a_child_with_a_stuck_thread_is_replaced_and_the_run_has_timed_out(
    shop, notes, store_url, tmp_path
):
    with Tree(store_url, tmp_path, grace=0.2).ready() as tree:
        (before,) = tree.workers()
        run = shop.stuck.enqueue(notes.log)
        (start,) = notes.wait_for_starts(1)

        wait_until(lambda: run.refresh().is_final, seconds=30, what="it has timed out")

        assert (run.state, run.cause) == ("failed", "timed_out")
        assert outcomes(run) == ["timed_out"]
        assert start.pid == before
        assert not is_running(before)
        assert shop.quick.enqueue(1).result(timeout=20) == 1


class TestLoading:
    """An application that cannot be loaded, or not yet."""

    @pytest.mark.parametrize(
        ("text", "reference", "status", "message"),
        [
            ("", "nowhere:app", 2, "no module 'nowhere'"),
            ("x = 1", "broken:app", 2, "has no 'app'"),
            ("app = 5", "broken:app", 2, "broken:app is a int, not a Duly application"),
            ("def f(:", "broken:app", 1, "invalid syntax"),
            ("raise RuntimeError('no config')", "broken:app", 1, "no config"),
            ("import sys; sys.exit('bye')", "broken:app", 1, "bye"),
        ],
        ids=["no module", "no attribute", "no application", "syntax", "raises", "exits"],
    )
    @pytest.mark.stores("sqlite-wal")  # It never comes to the store.
    def test_it_ends_promptly_with_a_message(
        self, store_url, tmp_path, text, reference, status, message
    ):
        (tmp_path / "broken.py").write_text(text)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        with Tree(store_url, tmp_path, app=reference, environment={"PYTHONPATH": path}) as tree:
            assert tree.ended(seconds=15) == status

        assert message in tree.log.read_text()

    @pytest.mark.stores("sqlite-wal")
    def test_children_that_cannot_start_at_the_same_time_end_as_one_does(self, store_url, tmp_path):
        # Both are there for a while, however late the second one begins.
        broken = "import time; time.sleep(2); raise RuntimeError('no config')"
        (tmp_path / "broken.py").write_text(broken)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        with Tree(
            store_url, tmp_path, app="broken:app", processes=2, environment={"PYTHONPATH": path}
        ) as tree:
            wait_until(lambda: len(tree.children()) == 2, seconds=45, what="its children begin")
            tree.freeze(tree.keeper.pid)
            wait_until(lambda: not tree.children(), seconds=45, what="its children end")
            tree.thaw(tree.keeper.pid)

            assert tree.ended(seconds=45) == 1, tree.log.read_text()

        assert "ChildProcessError" not in tree.log.read_text()

    @pytest.mark.stores("sqlite-wal")
    def test_code_that_was_replaced_by_code_that_does_not_load_ends_no_supervisor(
        self, shop, store_url, tmp_path
    ):
        module = tmp_path / "deployed.py"
        fine = "from tests.worker.shop import app\n"
        module.write_text(fine)
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        with Tree(store_url, tmp_path, app="deployed:app", environment=environment) as tree:
            (before,) = tree.ready().workers()

            module.write_text("raise RuntimeError('half a deployment')\n")
            tree.kill(before)
            wait_until(
                lambda: "half a deployment" in tree.log.read_text(),
                seconds=30,
                what="a child cannot load it",
            )
            module.write_text(fine)

            assert shop.quick.enqueue(1).result(timeout=30) == 1
            tree.terminate()
            assert tree.ended() == 0

    @pytest.mark.stores("sqlite-wal")
    def test_an_application_may_open_many_files_when_it_is_imported(
        self, shop, store_url, tmp_path
    ):
        (tmp_path / "crowded.py").write_text(
            "import os, resource\n"
            "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 4096), most))\n"
            "files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]\n"
            "from tests.worker.shop import app\n"
        )
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        with Tree(store_url, tmp_path, app="crowded:app", environment={"PYTHONPATH": path}) as tree:
            tree.ready()
            assert shop.quick.enqueue(1).result(timeout=20) == 1
            tree.terminate()
            assert tree.ended() == 0

        assert "Traceback" not in tree.log.read_text()

    @pytest.mark.stores("sqlite-wal")
    def test_a_store_that_does_not_answer_just_then_is_tried_again(self, shop, store_url, tmp_path):
        (tmp_path / "patient.py").write_text(
            "import pathlib\n"
            "from duly import Duly, StoreUnavailable\n"
            "from tests.worker import shop\n"
            f"marker = pathlib.Path({str(tmp_path / 'asked')!r})\n"
            "class Patient(Duly):\n"
            "    @property\n"
            "    def store(self):\n"
            "        if not marker.exists():\n"
            "            marker.touch()\n"
            "            raise StoreUnavailable('the server is starting')\n"
            "        return super().store\n"
            "app = Patient()\n"
            "app.registry = shop.app.registry\n"
        )
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        with Tree(store_url, tmp_path, app="patient:app", environment={"PYTHONPATH": path}) as tree:
            tree.ready()
            assert shop.quick.enqueue(1).result(timeout=20) == 1

        assert (tmp_path / "asked").exists()


@pytest.mark.stores("sqlite-wal")  # Its folder is the test's own.
def test_a_worker_process_that_cannot_be_started_just_then_ends_no_supervisor(
    shop, store_url, tmp_path
):
    with Tree(store_url, tmp_path) as tree:
        (before,) = tree.ready().workers()
        folder = runtime_folder(shop.app.store)
        away = folder.with_name("away")
        folder.rename(away)
        folder.touch()

        tree.kill(before)
        wait_until(
            lambda: "start a worker process" in tree.log.read_text(),
            seconds=30,
            what="a child cannot be started",
        )
        folder.unlink()
        away.rename(folder)

        assert shop.quick.enqueue(1).result(timeout=30) == 1
        tree.terminate()
        assert tree.ended() == 0


class TestDraining:
    """--drain: end when nothing is left to do."""

    def test_it_ends_when_all_is_done(self, shop, store_url, tmp_path):
        runs = shop.app.enqueue_many(shop.quick.call(n) for n in range(100))
        later = shop.quick.using(delay=600).enqueue(1)

        with Tree(store_url, tmp_path, processes=2, drain=True) as tree:
            assert tree.ended(seconds=40) == 0

        states = shop.app.store.get_states([run.id for run in runs])
        assert set(states.values()) == {"succeeded"}
        assert later.refresh().state == "queued"

    @pytest.mark.stores("sqlite-wal")  # It never comes to the store.
    @pytest.mark.parametrize("line", ["sys.stdout = None", "sys.stdout.close()"])
    def test_it_ends_though_the_application_has_done_away_with_its_output(
        self, store_url, tmp_path, line
    ):
        (tmp_path / "mute.py").write_text(
            f"import sys\nfrom duly import Duly\napp = Duly()\n{line}\n"
        )
        path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        environment = {"PYTHONPATH": path}
        with Tree(store_url, tmp_path, app="mute:app", drain=True, environment=environment) as tree:
            assert tree.ended(seconds=20) == 0

    def test_what_a_killed_child_left_is_done_too(self, shop, notes, store_url, tmp_path):
        runs = [shop.linger.enqueue(*notes.arguments(n)) for n in range(3)]
        with Tree(store_url, tmp_path, processes=1, drain=True) as tree:
            (victim,) = {line.pid for line in notes.wait_for_starts(3)}
            tree.kill(victim)
            notes.open_gate()

            assert tree.ended(seconds=40) == 0
        assert [str(run.refresh().state) for run in runs] == ["succeeded"] * 3


@pytest.mark.stores("sqlite-wal")
def test_children_hear_no_signal_of_the_keepers_terminal(shop, notes, store_url, tmp_path):
    """A terminal sends SIGINT to the whole group; children have a session of their own."""
    with Tree(store_url, tmp_path).ready() as tree:
        (child,) = tree.workers()

        assert os.getsid(child) == child
        assert os.getpgid(child) == child
        os.kill(tree.keeper.pid, signal.SIGINT)
        assert tree.ended() == 0
