"""Who may be called dead, and when: no sooner than a whole lease of the watcher's own reads."""

import math
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.events import EventBus
from duly.limits import WATCHERS
from duly.store.heartbeats import HeartbeatReading
from duly.store.ops.upkeep import RegisterWorker
from duly.worker.services import recovery
from duly.worker.services.recovery import LeaseMonitor, Recoverer

LEASE = 15.0
SINCE = 0.0
"""The watcher's own beats have succeeded since then."""


def test_a_counter_that_stands_still_for_a_whole_lease_means_dead():
    watch = LeaseMonitor(LEASE)

    assert watch.dead({"w": 7}, 100.0, SINCE) == []
    assert watch.dead({"w": 7}, 114.9, SINCE) == []
    assert watch.dead({"w": 7}, 115.0, SINCE) == ["w"]


def test_a_counter_that_moves_means_alive():
    watch = LeaseMonitor(LEASE)

    for turn in range(10):
        assert watch.dead({"w": turn}, 100.0 + 14 * turn, SINCE) == []


def test_a_single_look_proves_nothing_however_late_it_comes():
    watch = LeaseMonitor(LEASE)

    assert watch.dead({"w": 7}, 1e9, SINCE) == []


def test_the_time_begins_with_the_first_look_at_that_count():
    watch = LeaseMonitor(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)
    watch.dead({"w": 8}, 110.0, SINCE)

    assert watch.dead({"w": 8}, 116.0, SINCE) == []
    assert watch.dead({"w": 8}, 125.0, SINCE) == ["w"]


def test_a_process_that_is_surely_gone_is_dead_at_once():
    watch = LeaseMonitor(LEASE)

    assert watch.dead({"gone": None, "here": 1}, 100.0, SINCE) == ["gone"]


def test_a_process_that_was_watched_and_is_gone_has_stood_still_for_ever():
    watch = LeaseMonitor(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    assert watch.dead({"w": None}, 101.0, SINCE) == ["w"]
    assert watch.unmoved_for("w", 101.0) == math.inf


def test_an_interrupted_read_begins_the_watch_anew():
    watch = LeaseMonitor(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    watch.interrupted()

    assert watch.dead({"w": 7}, 120.0, SINCE) == []
    assert watch.dead({"w": 7}, 134.9, SINCE) == []
    assert watch.dead({"w": 7}, 135.0, SINCE) == ["w"]


def test_while_the_watchers_own_beats_fail_nobody_is_dead():
    watch = LeaseMonitor(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    assert watch.dead({"w": 7, "gone": None}, 120.0, None) == []
    assert watch.dead({"w": 7}, 121.0, 120.5) == []
    assert watch.dead({"w": 7}, 135.9, 120.5) == []
    assert watch.dead({"w": 7}, 136.0, 120.5) == ["w"]


def test_beats_that_failed_between_two_looks_begin_the_watch_anew():
    watch = LeaseMonitor(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    # At both looks the beats succeed, but the present row of successes is younger than the first.
    assert watch.dead({"w": 7}, 115.0, 110.0) == []
    assert watch.dead({"w": 7}, 130.0, 110.0) == ["w"]


def test_a_worker_that_comes_back_is_watched_from_then_on():
    watch = LeaseMonitor(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)
    watch.dead({}, 105.0, SINCE)

    assert watch.dead({"w": 7}, 116.0, SINCE) == []


moments = st.lists(
    st.tuples(
        st.floats(0.0, 10.0),  # seconds since the last look
        st.sampled_from(["still", "moves", "read fails", "own beats fail"]),
    ),
    max_size=40,
)


@given(moments)
def test_nobody_is_dead_before_a_whole_lease_of_good_looks_at_one_count(steps):
    watch = LeaseMonitor(LEASE)
    now, counter, beats_since = 1000.0, 0, 1000.0
    still_since: float | None = None

    for pause, event in steps:
        now += pause
        if event == "read fails":
            watch.interrupted()
            still_since = None
            continue
        if event == "own beats fail":
            assert watch.dead({"w": counter}, now, None) == []
            beats_since, still_since = now, None
            continue
        if event == "moves":
            counter += 1
            still_since = None
        still_since = now if still_since is None else still_since

        dead = watch.dead({"w": counter}, now, beats_since)

        assert dead == (["w"] if now - still_since >= LEASE else [])


class Fleet:
    """Workers of one lease, each under a keeper of its own, that beat and look at each other."""

    LEASE, BEAT = 15.0, 5.0

    def __init__(self, folder: Path, time, phases: list[float]) -> None:
        self._time = time
        self._phases = {f"w{number}": phase for number, phase in enumerate(phases)}
        self._died_at = dict.fromkeys(self._phases, math.inf)
        self.looks = dict.fromkeys(self._phases, 0)
        self.rows_read = 0
        pulse = SimpleNamespace(read=self.read, is_watcher=self.is_watcher)
        patient = SimpleNamespace(heartbeats=lambda: pulse, do=lambda _op: [], has_one_writer=False)
        self._watchers = {
            name: Recoverer(
                patient,
                EventBus(),
                folder,
                own_ids=lambda name=name: frozenset({name}),
                beats_since=lambda: 0.0,
                lease=self.LEASE,
                beat=self.BEAT,
            )
            for name in self._phases
        }
        self._look_at = {name: time() + phase for name, phase in self._phases.items()}

    def read(self) -> dict[str, HeartbeatReading]:
        """Return what a look shows just now."""
        now = self._time()
        readings = {}
        for name, phase in self._phases.items():
            beats, age = divmod(min(now, self._died_at[name]) - phase, self.BEAT)
            readings[name] = HeartbeatReading(int(beats), age + max(0.0, now - self._died_at[name]))
        self.rows_read += len(readings)
        return readings

    def is_watcher(self, names: frozenset[str], within: float) -> bool:
        """Say who looks at all, as the store does."""
        return not names.isdisjoint(self.watchers(within))

    def watchers(self, within: float = 1.25 * BEAT) -> list[str]:
        """Return the first of those that have beaten lately; all, if they are few."""
        now = self._time()
        fresh = [
            name
            for name, phase in self._phases.items()
            if now - self._died_at[name] + (self._died_at[name] - phase) % self.BEAT <= within
            or self._died_at[name] > now
        ]
        return sorted(fresh)[:WATCHERS]

    def kill(self, *names: str, after_beat: float) -> float:
        """Let workers end so long after a beat of the first; return when."""
        now = self._time()
        self.go_on_until(now + (self._phases[names[0]] - now) % self.BEAT + after_beat)
        for name in names:
            self._died_at[name] = self._time()
            del self._watchers[name], self._look_at[name]
        return self._time()

    def keep_from_looking(self, *names: str) -> None:
        """Let workers beat, and never look."""
        for name in names:
            del self._watchers[name], self._look_at[name]

    def go_on_until(self, end: float) -> None:
        """Let everybody look when it wants to, up to then."""
        while (first := min(self._look_at, key=self._look_at.__getitem__)) is not None:
            if self._look_at[first] > end:
                break
            self._time.now = self._look_at[first]
            self.looks[first] += 1
            self._look_at[first] = self._time.now + self._watchers[first].tick()
        self._time.now = end


def test_a_process_that_is_known_to_be_gone_did_not_lose_a_lease(
    app, store_kind, tmp_path, passing
):
    time = passing(recovery)
    app.store.do(RegisterWorker("gone", "host", 1, LEASE, "[]", "[]"))
    ends = []
    app.bus.subscribe(ends.append)
    watcher = Recoverer(
        app.store,
        app.bus,
        tmp_path,
        own_ids=lambda: frozenset({"me"}),
        beats_since=lambda: 0.0,
        lease=LEASE,
        beat=5.0,
    )

    for _ in range(2):
        watcher.tick()
        time.advance(LEASE)

    # On SQLite the kernel shows at once that the process has ended, before any lease is over.
    is_seen = store_kind.startswith("sqlite")
    expected = "its process ended" if is_seen else "its lease expired"
    assert [(end.worker_id, end.reason) for end in ends] == [("gone", expected)]


class TestLooks:
    """When a worker looks at the others."""

    @pytest.fixture
    def time(self, passing):
        """Time that passes when a test says so."""
        return passing(recovery)

    @pytest.fixture
    def recovered(self, monkeypatch) -> list[str]:
        """Who was called dead."""
        found = []
        monkeypatch.setattr(
            recovery, "recover_worker", lambda _store, _bus, name, *_, **__: found.append(name)
        )
        return found

    @pytest.mark.parametrize("trees", [2, 3, 7, 30])
    def test_a_tree_that_is_gone_is_found_within_its_lease_and_two_seconds_at_any_phase(
        self, tmp_path, time, recovered, trees
    ):
        random = Random(trees)  # noqa: S311 - phases, no secrets
        for step in range(40):
            phases = [random.uniform(0.0, Fleet.BEAT) for _ in range(trees)]
            fleet = Fleet(tmp_path, time, phases)
            fleet.go_on_until(time() + 60.0)

            died_at = fleet.kill("w0", after_beat=Fleet.BEAT * step / 40)
            fleet.go_on_until(died_at + Fleet.LEASE - Fleet.BEAT)
            assert recovered == []
            fleet.go_on_until(died_at + Fleet.LEASE + 2.0)

            assert set(recovered) == {"w0"}, (phases, step)
            recovered.clear()

    def test_all_that_look_at_many_may_end_at_once_and_others_do_it_soon(
        self, tmp_path, time, recovered
    ):
        random = Random(30)  # noqa: S311 - phases, no secrets
        for step in range(20):
            phases = [random.uniform(0.0, Fleet.BEAT) for _ in range(30)]
            fleet = Fleet(tmp_path, time, phases)
            fleet.go_on_until(time() + 100.0)
            gone = [*fleet.watchers(), "w9"]

            died_at = fleet.kill(*gone, after_beat=Fleet.BEAT * step / 20)
            fleet.go_on_until(died_at + Fleet.LEASE - Fleet.BEAT)
            assert recovered == []
            fleet.go_on_until(died_at + Fleet.LEASE + 2 * Fleet.BEAT)

            assert set(recovered) == set(gone), (phases, step)
            recovered.clear()

    def test_workers_that_only_beat_do_not_keep_others_from_looking_for_ever(
        self, tmp_path, time, recovered
    ):
        fleet = Fleet(tmp_path, time, [0.15 * number for number in range(30)])
        fleet.go_on_until(time() + 100.0)
        fleet.keep_from_looking(*(set(fleet.watchers()) - {"w9"}))

        died_at = fleet.kill("w9", after_beat=1.0)
        fleet.go_on_until(died_at + 8 * Fleet.LEASE + 2 * Fleet.BEAT)

        assert set(recovered) == {"w9"}

    def test_what_all_workers_read_grows_with_their_number_and_not_with_its_square(
        self, tmp_path, time
    ):
        read = {}
        for trees in (30, 300):
            random = Random(trees)  # noqa: S311 - phases, no secrets
            phases = [random.uniform(0.0, Fleet.BEAT) for _ in range(trees)]
            fleet = Fleet(tmp_path, time, phases)
            fleet.go_on_until(time() + 200.0)
            fleet.rows_read = 0
            fleet.go_on_until(time() + 200.0)
            read[trees] = fleet.rows_read

        assert read[300] <= 20 * read[30], "as the number, and not a hundred times as many"

    @pytest.mark.parametrize("trees", [1, 2, 7])
    def test_workers_that_all_beat_look_once_per_beat(self, tmp_path, time, trees):
        fleet = Fleet(tmp_path, time, [0.7 * number for number in range(trees)])
        fleet.go_on_until(time() + 10.0)
        before = dict(fleet.looks)

        fleet.go_on_until(time() + 60.0)

        assert all(fleet.looks[name] - before[name] <= 13 for name in before)
