"""Instants and durations are written for people in one way."""

import pytest

from duly.core.time_text import (
    coarse_duration,
    duration,
    exact_duration,
    exact_utc_text,
    interval_words,
    relative,
    shown_instant,
    utc_text,
)

SECOND = 1_000_000
MINUTE, HOUR, DAY = 60 * SECOND, 3_600 * SECOND, 86_400 * SECOND
NOW = 1_900_000_000 * SECOND
DISTANCES = [
    (0, "now"),
    (-999_999, "now"),
    (999_999, "now"),
    (-SECOND, "1 s ago"),
    (-3 * SECOND, "3 s ago"),
    (59 * SECOND, "in 59 s"),
    (-MINUTE, "1 min ago"),
    (-HOUR + SECOND, "59 min ago"),
    (2 * HOUR, "in 2 h"),
    (-DAY + SECOND, "23 h ago"),
    (-3 * DAY, "3 d ago"),
    (400 * DAY, "in 400 d"),
]
COARSE = [
    (0, "0 s"),
    (999_999, "0 s"),
    (59 * SECOND, "59 s"),
    (90 * SECOND, "1 min"),
    (HOUR - 1, "59 min"),
    (DAY - 1, "23 h"),
    (10 * DAY, "10 d"),
]
DURATIONS = [
    (0, "0 µs"),
    (600, "600 µs"),
    (1_000, "1.0 ms"),
    (1_250, "1.2 ms"),
    (9_999, "9.9 ms"),
    (12_345, "12 ms"),
    (999_600, "999 ms"),
    (SECOND, "1.00 s"),
    (1_256_000, "1.25 s"),
    (9_999_999, "9.99 s"),
    (12_340_000, "12.3 s"),
    (MINUTE - 1, "59.9 s"),
    (MINUTE, "1 min"),
    (90 * SECOND, "1 min 30 s"),
    (2 * HOUR + 5 * MINUTE + 3 * SECOND, "2 h 5 min"),
    (2 * HOUR + 3 * SECOND, "2 h 3 s"),
    (3 * DAY + 4 * HOUR, "3 d 4 h"),
]


@pytest.mark.parametrize(("away", "words"), DISTANCES)
def test_a_distance_in_time_is_written_in_its_largest_unit(away, words):
    assert relative(NOW + away, NOW) == words


def test_a_missing_instant_has_no_distance():
    assert (relative(None, NOW), shown_instant(None, NOW)) == ("", "")


@pytest.mark.parametrize(("microseconds", "words"), COARSE)
def test_a_coarse_duration_is_rounded_down(microseconds, words):
    assert coarse_duration(microseconds) == words


@pytest.mark.parametrize(("microseconds", "words"), DURATIONS)
def test_a_duration_has_a_useful_precision_and_is_rounded_down(microseconds, words):
    assert duration(microseconds) == words


@pytest.mark.parametrize(
    ("microseconds", "words"),
    [
        (7, "0.007 ms"),
        (12_345, "12.345 ms"),
        (1_250_431, "1.250431 s"),
        (7_503_000_001, "2 h 5 min 3.000001 s"),
    ],
)
def test_an_exact_duration_has_every_microsecond(microseconds, words):
    assert exact_duration(microseconds) == words


@pytest.mark.parametrize(
    ("microseconds", "words"),
    [
        (SECOND, "second"),
        (90 * SECOND, "90 seconds"),
        (SECOND // 2, "0.5 seconds"),
        (5 * MINUTE, "5 minutes"),
        (HOUR, "hour"),
        (2 * DAY, "2 days"),
    ],
)
def test_an_interval_is_written_in_words(microseconds, words):
    assert interval_words(microseconds) == words


def test_instants_are_written_in_utc():
    assert utc_text(NOW) == "2030-03-17 17:46:40 UTC"
    assert exact_utc_text(NOW + 123_456) == "2030-03-17 17:46:40.123 UTC"
    assert shown_instant(NOW, NOW + 5 * SECOND) == "2030-03-17 17:46:40 UTC (5 s ago)"
