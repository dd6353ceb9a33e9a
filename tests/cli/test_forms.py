"""Parsing of command-line values and formatting for people."""

import unicodedata
from datetime import timedelta

import click
import pytest

from duly.cli.option_types import duration, instant, since, tag
from duly.core.escape import clean, clean_lines
from duly.core.instants import iso


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5m", 90), ("24h", 86_400), ("7d", 604_800), ("2w", 1_209_600)],
)
def test_durations_are_parsed(text, seconds):
    assert duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text", ["", "h", "-1h", "1 h", "1y", "1h30m", "\N{ARABIC-INDIC DIGIT ONE}h", "1e9", "inf"]
)
def test_an_invalid_duration_is_refused(text):
    with pytest.raises(click.BadParameter):
        duration(text)


def test_a_huge_duration_is_capped():
    assert duration("9" * 400) == timedelta.max


@pytest.mark.parametrize("text", ["", "now", "2031-01-01", "2031-01-01T00:00", "2031-13-01T00:00Z"])
def test_an_invalid_instant_is_refused(text):
    with pytest.raises(click.BadParameter):
        instant(text)


@pytest.mark.parametrize("text", ["", "90", "yesterday", "1y"])
def test_an_age_needs_a_number_and_a_unit(text):
    with pytest.raises(click.BadParameter):
        since(text)


def test_since_accepts_an_instant_or_an_age():
    assert since("1h") == timedelta(hours=1)
    assert since("2031-01-01T00:00Z") == instant("2031-01-01T00:00Z")


@pytest.mark.parametrize("text", ["", "shop", "=7"])
def test_an_invalid_tag_is_refused(text):
    with pytest.raises(click.BadParameter):
        tag(text)


def test_instants_are_written_for_machines():
    assert iso(0) == "1970-01-01T00:00:00.000000Z"
    assert iso(1_900_000_000_123_456) == "2030-03-17T17:46:40.123456Z"
    assert iso(10**18) == "9999-12-31T23:59:59.999999Z"
    assert iso(None) is None


def test_no_control_or_format_character_is_left():
    every = "".join(map(chr, range(0x110000)))

    left = {unicodedata.category(character) for character in clean(every)}

    assert left.isdisjoint({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def test_plain_text_stays_as_it_is():
    assert clean("größe 漢字 🙂") == "größe 漢字 🙂"


def test_line_breaks_are_kept_and_control_characters_escaped():
    assert clean_lines("a\r\n\tb\x1b\u2028c") == "a\n    b\\x1b\\u2028c"
