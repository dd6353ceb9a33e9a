"""The thread that renews leases: what it publishes, and what a failure costs."""

import threading

import pytest

from duly import BadOption, StoreUnavailable, heartbeat
from duly.heartbeat import HeartbeatThread
from duly.settings import WorkerSettings

LEASE, BEAT, MARGIN = 15.0, 5.0, 2.0


class Pulse:
    """A store's pulse that answers as it is told."""

    def __init__(self) -> None:
        self.live = {"w"}
        self.error: Exception | None = None
        self.on_beat = lambda: None
        self.beats: list[list[str]] = []

    def beat(self, worker_ids):
        self.on_beat()
        if self.error is not None:
            raise self.error
        self.beats.append(list(worker_ids))
        return {worker_id for worker_id in worker_ids if worker_id in self.live}


class Member:
    """A worker, and what was published to it."""

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.disowned: list[str] = []


@pytest.fixture
def pulse() -> Pulse:
    """The store's side."""
    return Pulse()


@pytest.fixture
def member() -> Member:
    """The worker's side."""
    return Member()


@pytest.fixture
def beating(pulse: Pulse, member: Member) -> HeartbeatThread:
    """A keepalive for one worker, driven by hand."""
    return HeartbeatThread(
        pulse,
        lambda: {"w": member.deadlines.append},
        member.disowned.append,
        lease=LEASE,
        beat=BEAT,
        margin=MARGIN,
    )


def test_a_deadline_counts_from_when_the_beat_was_sent(beating, pulse, member, passing):
    time = passing(heartbeat)
    sent_at = time.now
    pulse.on_beat = lambda: time.advance(3.0)  # The answer takes its time.

    pause = beating.tick()

    assert member.deadlines == [sent_at + LEASE - MARGIN]
    assert pause == BEAT


def test_every_acknowledged_beat_moves_the_deadline(beating, member, passing):
    time = passing(heartbeat)

    for _ in range(3):
        beating.tick()
        time.advance(BEAT)

    assert member.deadlines == [1013.0, 1018.0, 1023.0]


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), OSError("no space")])
def test_a_beat_that_failed_leaves_the_old_deadline(beating, pulse, member, passing, error):
    time = passing(heartbeat)
    beating.tick()
    pulse.error = error
    time.advance(BEAT)

    pause = beating.tick()

    assert member.deadlines == [1013.0]
    assert member.disowned == []
    assert pause < BEAT / 3
    assert beating.beats_succeeded_since is None


def test_after_a_failure_the_row_of_successes_begins_anew(beating, pulse, passing):
    time = passing(heartbeat)
    beating.tick()
    assert beating.beats_succeeded_since == 1000.0
    pulse.error = StoreUnavailable("gone")
    time.advance(1.0)
    beating.tick()
    pulse.error = None
    time.advance(1.0)

    beating.tick()

    assert beating.beats_succeeded_since == 1002.0
    time.advance(1.0)
    beating.tick()
    assert beating.beats_succeeded_since == 1002.0


def test_a_worker_the_store_calls_dead_is_told_and_gets_no_deadline(beating, pulse, member):
    pulse.live.clear()

    beating.tick()

    assert member.disowned == ["w"]
    assert member.deadlines == []


def test_it_attends_after_every_try_even_if_the_store_does_not_answer(beating, pulse, passing):
    time = passing(heartbeat)
    attended = []
    beating.on_attempt = lambda at, since: attended.append((at, since))
    pulse.on_beat = lambda: time.advance(0.5)
    beating.tick()
    pulse.error = StoreUnavailable("gone")
    time.advance(1.0)
    beating.tick()

    # Others count from when a beat was sent, at the soonest; one that failed they never saw.
    assert attended == [(1000.0, 1000.0), (1002.0, None)]


def test_without_members_nothing_is_asked_of_the_store(pulse, passing):
    passing(heartbeat)
    idle = HeartbeatThread(pulse, dict, lambda _: None, lease=LEASE, beat=BEAT, margin=MARGIN)

    assert idle.tick() == BEAT
    assert pulse.beats == []


@pytest.mark.parametrize(("lease", "beat"), [(15.0, 5.1), (15.0, 15.0), (3.0, 1.01)])
def test_a_beat_longer_than_a_third_of_the_lease_is_refused(pulse, lease, beat):
    with pytest.raises(BadOption, match="at least three times"):
        HeartbeatThread(pulse, dict, lambda _: None, lease=lease, beat=beat, margin=0.1)
    with pytest.raises(BadOption, match="at least three times"):
        WorkerSettings(lease=lease, beat=beat)


def test_a_beat_of_exactly_a_third_is_accepted(pulse):
    thread = HeartbeatThread(pulse, dict, lambda _: None, lease=15.0, beat=5.0, margin=2.0)
    settings = WorkerSettings(lease=15.0, beat=5.0)

    assert (thread.tick(), settings.beat) == (5.0, 5.0)


@pytest.mark.parametrize("beat", [0.0, -1.0])
def test_a_beat_of_no_time_is_refused(beat):
    with pytest.raises(BadOption, match="three times"):
        WorkerSettings(lease=15.0, beat=beat)


def test_hurrying_beats_at_once(pulse, member):
    begun, again = threading.Event(), threading.Event()
    beating = HeartbeatThread(
        pulse,
        lambda: {"w": member.deadlines.append},
        member.disowned.append,
        lease=3000.0,
        beat=1000.0,
        margin=2.0,
    )

    def note() -> None:
        (again if begun.is_set() else begun).set()

    pulse.on_beat = note
    beating.start()
    try:
        assert begun.wait(20)

        beating.beat_now()

        assert again.wait(20)
    finally:
        beating.stop()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_that_nobody_foresaw_does_not_end_it(pulse, monkeypatch):
    monkeypatch.setattr(heartbeat, "_RETRY_SECONDS", 0.01)
    published = threading.Event()
    told = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def publish(_deadline: float) -> None:
        if len(pulse.beats) == 1:
            raise ValueError("its memory is gone")
        published.set()

    beating = HeartbeatThread(
        pulse, lambda: {"w": publish}, pytest.fail, lease=LEASE, beat=BEAT, margin=MARGIN
    )
    beating.start()
    try:
        assert published.wait(20)
    finally:
        beating.stop()
    assert len(told) == 1
