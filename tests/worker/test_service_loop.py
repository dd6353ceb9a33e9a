"""The one service loop: pauses, hurries, back-off from a broken store, and survival."""

import threading

import pytest

from duly import StoreError, StoreUnavailable
from duly.events import EventBus, StoreFailed, StoreRecovered
from duly.worker import service_loop
from duly.worker.service_loop import ServiceLoop


class Counting:
    """A service that ticks as it is told."""

    def __init__(self, name: str = "count", pause: float = 10.0) -> None:
        self.name = name
        self.pause = pause
        self.error: Exception | None = None
        self.ticks = 0

    def tick(self) -> float:
        self.ticks += 1
        if self.error is not None:
            raise self.error
        return self.pause


class Driven:
    """A loop whose turns a test takes one by one, in time of its own."""

    def __init__(self, time, *services: Counting) -> None:
        self.time = time
        self.bus = EventBus()
        self.events: list[object] = []
        self.bus.subscribe(self.events.append)
        self.loop = ServiceLoop("driven", list(services), self.bus)

    def turn(self) -> None:
        """Tick what is due."""
        self.loop._tick_due()


@pytest.fixture
def time(passing, monkeypatch):
    """Fake time, and no chance."""
    monkeypatch.setattr(service_loop, "jitter", lambda: 1.0)
    return passing(service_loop)


def test_a_service_ticks_when_its_pause_is_over(time):
    counting = Counting(pause=10.0)
    driven = Driven(time, counting)

    driven.turn()
    time.advance(9.9)
    driven.turn()
    assert counting.ticks == 1
    time.advance(0.1)
    driven.turn()

    assert counting.ticks == 2


def test_each_service_has_its_own_pause(time):
    often, seldom = Counting(pause=1.0), Counting(pause=100.0)
    driven = Driven(time, often, seldom)

    for _ in range(5):
        driven.turn()
        time.advance(1.0)

    assert (often.ticks, seldom.ticks) == (5, 1)


def test_a_hurried_service_ticks_at_once_and_alone(time):
    hurried, other = Counting(), Counting()
    driven = Driven(time, hurried, other)
    driven.turn()

    driven.loop.hurry(hurried)
    driven.turn()
    driven.turn()

    assert (hurried.ticks, other.ticks) == (2, 1)


def test_a_broken_store_is_backed_off_from_ever_longer_up_to_a_bound(time):
    counting = Counting()
    counting.error = StoreUnavailable("gone")
    driven = Driven(time, counting)

    for _ in range(12):
        driven.turn()
        time.advance(driven.events[-1].pause)

    pauses = [event.pause for event in driven.events]
    assert counting.ticks == 12
    assert all(isinstance(event, StoreFailed) for event in driven.events)
    assert pauses == sorted(pauses)
    assert pauses[0] <= 0.5
    assert pauses[-1] == 5.0


def test_a_service_that_backs_off_cannot_be_hurried(time):
    counting = Counting()
    counting.error = StoreUnavailable("gone")
    driven = Driven(time, counting)
    driven.turn()

    driven.loop.hurry(counting)
    driven.turn()

    assert counting.ticks == 1


def test_after_an_outage_it_tells_and_goes_on_as_before(time):
    counting = Counting(pause=10.0)
    counting.error = StoreError("odd")
    driven = Driven(time, counting)
    driven.turn()
    time.advance(60.0)
    counting.error = None

    driven.turn()
    driven.turn()
    time.advance(10.0)
    driven.turn()

    assert [type(event) for event in driven.events] == [StoreFailed, StoreRecovered]
    assert counting.ticks == 3


@pytest.mark.parametrize("error", [StoreError("x"), OSError("x"), KeyError("x"), TypeError("x")])
def test_one_broken_service_ends_neither_the_loop_nor_the_others(time, error):
    broken, sound = Counting("broken"), Counting("sound", pause=1.0)
    broken.error = error
    driven = Driven(time, broken, sound)

    for _ in range(10):
        driven.turn()
        time.advance(1.0)

    assert sound.ticks == 10
    assert broken.ticks > 1
    assert driven.events


def test_a_hurry_does_not_shorten_the_back_off_of_a_loop_that_runs(monkeypatch):
    monkeypatch.setattr(service_loop, "_FIRST_PAUSE", 60.0)
    failing, other = Counting("failing"), threading.Event()

    class Sound(Counting):
        def tick(self) -> float:
            if failing.ticks:
                other.set()
            return 0.01

    failing.error = StoreUnavailable("gone")
    loop = ServiceLoop("real", [failing, Sound("sound")], EventBus())
    loop.start()
    try:
        assert other.wait(20)
        other.clear()
        for _ in range(5):
            loop.hurry(failing)
            assert other.wait(20)
            other.clear()
    finally:
        loop.stop()

    assert failing.ticks == 1


def test_a_loop_runs_on_its_thread_until_it_is_stopped():
    ticked, hurried = threading.Event(), threading.Event()

    class Slow(Counting):
        def tick(self) -> float:
            (hurried if ticked.is_set() else ticked).set()
            return 3600.0

    slow = Slow()
    loop = ServiceLoop("real", [slow], EventBus())
    loop.start()
    try:
        assert ticked.wait(20)
        loop.hurry(slow)
        assert hurried.wait(20)
    finally:
        loop.stop()

    assert not any(thread.name == "real" for thread in threading.enumerate())
