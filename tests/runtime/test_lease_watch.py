"""Who may be called dead, and when: no sooner than a whole lease of the watcher's own reads."""

import math

from hypothesis import given
from hypothesis import strategies as st

from duly.runtime.recovery import LeaseWatch

LEASE = 15.0
SINCE = 0.0
"""The watcher's own beats have succeeded since then."""


def test_a_counter_that_stands_still_for_a_whole_lease_means_dead():
    watch = LeaseWatch(LEASE)

    assert watch.dead({"w": 7}, 100.0, SINCE) == []
    assert watch.dead({"w": 7}, 114.9, SINCE) == []
    assert watch.dead({"w": 7}, 115.0, SINCE) == ["w"]


def test_a_counter_that_moves_means_alive():
    watch = LeaseWatch(LEASE)

    for turn in range(10):
        assert watch.dead({"w": turn}, 100.0 + 14 * turn, SINCE) == []


def test_a_single_look_proves_nothing_however_late_it_comes():
    watch = LeaseWatch(LEASE)

    assert watch.dead({"w": 7}, 1e9, SINCE) == []


def test_the_time_begins_with_the_first_look_at_that_count():
    watch = LeaseWatch(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)
    watch.dead({"w": 8}, 110.0, SINCE)

    assert watch.dead({"w": 8}, 116.0, SINCE) == []
    assert watch.dead({"w": 8}, 125.0, SINCE) == ["w"]


def test_a_process_that_is_surely_gone_is_dead_at_once():
    watch = LeaseWatch(LEASE)

    assert watch.dead({"gone": None, "here": 1}, 100.0, SINCE) == ["gone"]


def test_a_process_that_was_watched_and_is_gone_has_stood_still_for_ever():
    watch = LeaseWatch(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    assert watch.dead({"w": None}, 101.0, SINCE) == ["w"]
    assert watch.unmoved_for("w", 101.0) == math.inf


def test_an_interrupted_read_begins_the_watch_anew():
    watch = LeaseWatch(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    watch.interrupted()

    assert watch.dead({"w": 7}, 120.0, SINCE) == []
    assert watch.dead({"w": 7}, 134.9, SINCE) == []
    assert watch.dead({"w": 7}, 135.0, SINCE) == ["w"]


def test_while_the_watchers_own_beats_fail_nobody_is_dead():
    watch = LeaseWatch(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    assert watch.dead({"w": 7, "gone": None}, 120.0, None) == []
    assert watch.dead({"w": 7}, 121.0, 120.5) == []
    assert watch.dead({"w": 7}, 135.9, 120.5) == []
    assert watch.dead({"w": 7}, 136.0, 120.5) == ["w"]


def test_beats_that_failed_between_two_looks_begin_the_watch_anew():
    watch = LeaseWatch(LEASE)
    watch.dead({"w": 7}, 100.0, SINCE)

    # At both looks the beats succeed, but the present row of successes is younger than the first.
    assert watch.dead({"w": 7}, 115.0, 110.0) == []
    assert watch.dead({"w": 7}, 130.0, 110.0) == ["w"]


def test_a_worker_that_comes_back_is_watched_from_then_on():
    watch = LeaseWatch(LEASE)
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
    watch = LeaseWatch(LEASE)
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
