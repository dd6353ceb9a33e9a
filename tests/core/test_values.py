"""Storable values are restored exactly, and other values are refused."""

# ruff: noqa: D101 - the name and the fields of a sample describe it

import collections
import json
import typing
from datetime import UTC, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import PurePath
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.core.payload import CallCodec, decode_value, display, encode_value
from duly.errors import PayloadError
from duly.limits import PAYLOAD_BYTES, PAYLOAD_DEPTH
from tests.core.payload_samples import (
    Color,
    Customer,
    Level,
    Line,
    anything,
    exactly,
    nested,
    plain,
    refusal_of,
    round_trip,
)

Point = collections.namedtuple("Point", "x y")  # noqa: PYI024 - the untyped kind is tested


class Name(str):
    __slots__ = ()


class Stamp(datetime):
    pass


class Berlin(tzinfo):
    def utcoffset(self, _moment):
        return timedelta(hours=1)


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=20)
offsets = st.integers(-86_399, 86_399).map(lambda seconds: timedelta(seconds=seconds))
fixed_zones = st.one_of(
    st.just(UTC), offsets.map(timezone), st.builds(timezone, offsets, st.sampled_from("AB"))
)
zones = st.one_of(st.none(), fixed_zones, st.timezones())
hashables = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
    st.builds(
        lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
        st.datetimes(),
        zones,
        st.sampled_from([0, 1]),
    ),
    st.builds(
        lambda moment, zone, fold: moment.replace(tzinfo=zone, fold=fold),
        st.times(),
        st.one_of(st.none(), fixed_zones),
        st.sampled_from([0, 1]),
    ),
    st.dates(),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.binary(max_size=20),
)
keys = st.one_of(texts, texts.map("${}".format), st.sampled_from(["$date", "$dict", "$", "$$"]))
values = st.recursive(
    st.one_of(hashables, st.sets(hashables), st.frozensets(st.frozensets(hashables))),
    lambda parts: st.one_of(
        st.lists(parts), st.lists(parts).map(tuple), st.dictionaries(keys, parts)
    ),
    max_leaves=10,
)


@given(values)
def test_every_storable_value_is_restored_with_its_exact_types(value):
    (_, arguments) = round_trip(anything, value)

    assert exactly(arguments) == exactly({"value": value})
    assert exactly(decode_value(encode_value(value))) == exactly(value)


@given(values)
def test_stored_text_is_compact_json_and_can_be_shown(value):
    text = encode_value(value)

    assert json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":")) == text
    assert display(text).isprintable()


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")),
        datetime(2026, 1, 1, tzinfo=UTC),
        datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=2), "CEST")),
        datetime(2026, 1, 1, 12, 30, 59, 123456),  # noqa: DTZ001 - naive ones are stored too
        time(2, 30, fold=1),
        {"$date": "2026-01-31", "other": 1},
        {"$dict": {"$tuple": []}},
        {"a": ({"b": {frozenset({1, (2, 3)})}},)},
        Decimal("-0.00"),
        -0.0,
        "\\u0000 is not a NUL, nor is \x01",
        "naïve ☃ 😀 \u202e",
        -(2**63),
        nested(PAYLOAD_DEPTH),
    ],
)
def test_an_unusual_value_is_restored_exactly(value):
    _, arguments = round_trip(anything, value)

    assert exactly(arguments["value"]) == exactly(value)


def test_a_time_zone_is_restored_as_the_same_object():
    zone = ZoneInfo("America/St_Johns")

    _, arguments = round_trip(anything, datetime(2026, 1, 1, tzinfo=zone))

    assert arguments["value"].tzinfo is zone


def test_a_datetime_parsed_by_pydantic_can_be_stored():
    customer = Customer.model_validate_json('{"name": "a", "since": "2026-01-01T00:00:00+02:00"}')

    _, arguments = round_trip(anything, customer.since)

    assert arguments["value"].isoformat() == "2026-01-01T00:00:00+02:00"


class Broken:
    pass


self_containing: list[typing.Any] = []
self_containing.append(self_containing)

doubling: list[typing.Any] = []
for _ in range(PAYLOAD_DEPTH - 2):
    doubling = [doubling, doubling]


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (2**63, "64 bits"),
        (-(2**63) - 1, "64 bits"),
        (float("nan"), "NaN"),
        (float("-inf"), "infinite"),
        (Decimal("NaN"), "Decimal"),
        (Decimal("Infinity"), "Decimal"),
        ("a\x00b", "NUL"),
        ("\ud800", "surrogate"),
        (Name("a"), "plain str"),
        (Level.LOW, "annotate it with Level"),
        (Color.RED, "annotate it with Color"),
        (Line(UUID(int=0)), "annotate it with Line"),
        (Customer(name="a"), "annotate it with Customer"),
        (Point(1, 2), "plain tuple"),
        (collections.OrderedDict(), "plain dict"),
        (collections.Counter(), "plain dict"),
        (bytearray(b"a"), "cannot be stored"),
        (range(3), "cannot be stored"),
        (PurePath("a"), "cannot be stored"),
        (Broken(), "is of type Broken, which cannot be stored"),
        (Broken, "is of type type"),
        (len, "cannot be stored"),
        (1j, "is of type complex"),
        (Stamp(2026, 1, 1, tzinfo=UTC), "plain datetime"),
        (datetime(2026, 1, 1, tzinfo=Berlin()), "time zone of type Berlin"),
        (time(1, tzinfo=ZoneInfo("Europe/Berlin")), "time zone of type ZoneInfo"),
        (time(1, tzinfo=timezone(timedelta(microseconds=1))), "fractions of a second"),
        (self_containing, "contains itself"),
        (nested(PAYLOAD_DEPTH + 1), "nested"),
        (doubling, "bytes"),
        ({1: 2}, "keys str"),
        ({Name("a"): 2}, "keys str"),
        ({"a\x00": 1}, "NUL"),
        ("x" * PAYLOAD_BYTES, "bytes"),
        ("é" * (PAYLOAD_BYTES // 2), "bytes"),
        (["x" * 10_000] * 1_000_000, "bytes"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else value[:20],
)
def test_the_error_for_a_value_that_cannot_be_restored_exactly_names_the_argument(value, problem):
    error = refusal_of(anything, value)

    assert error.argument.startswith("value")
    assert problem in error.problem
    assert error.problem in str(error)


@pytest.mark.parametrize("wrap", [lambda value: {value}, lambda value: (value,), list])
def test_the_items_of_a_container_are_checked(wrap):
    assert refusal_of(anything, wrap(Point(2**63, 2))).argument.startswith("value")


def test_an_error_contains_its_position_in_an_argument():
    assert refusal_of(plain, {"items": [1, 2, 3, 2**63]}).argument == "x.items[3]"
    assert refusal_of(plain, 1, y={"a b": (0, object())}).argument == 'y["a b"][1]'
    assert len(refusal_of(anything, self_containing).argument) < 200


def test_a_payload_at_the_limit_is_accepted_and_one_more_byte_is_refused():
    codec = CallCodec(plain)
    room = PAYLOAD_BYTES - len(codec.encode(("",), {"y": 1}))

    assert len(codec.encode(("x" * room,), {"y": 1})) == PAYLOAD_BYTES
    with pytest.raises(PayloadError) as caught:
        codec.encode(("x" * (room + 1),), {"y": 1})
    assert caught.value.argument == "x"


def test_the_error_for_a_large_payload_names_the_largest_argument():
    assert refusal_of(plain, [1] * 10, ["é" * 999] * 200).argument == "y"
