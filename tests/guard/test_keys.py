"""Keys are equal for equal calls, and only for equal calls."""

import dataclasses
import datetime as dt
import inspect
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly import BadArguments, BadOption, PayloadError
from duly.guard import make_key


def f(x, y=2, *rest, z=3, **others): ...


def key(*args, **kwargs):
    return make_key("shop.charge", args, kwargs, f)


def test_a_key_is_the_name_of_the_task_and_a_full_sha_256_digest():
    name, _, digest = key(1).rpartition(":")

    assert name == "shop.charge"
    assert len(digest) == 64
    assert set(digest) <= set("0123456789abcdef")


def test_a_key_does_not_depend_on_how_an_argument_is_passed():
    assert key(1) == key(x=1) == key(1, 2) == key(1, y=2) == key(y=2, x=1, z=3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((1,), {}), ((2,), {})),
        (((1,), {}), (("1",), {})),
        (((1,), {}), ((True,), {})),
        (((1,), {}), ((1.0,), {})),
        (((None,), {}), (("None",), {})),
        ((((1, 2),), {}), (([1, 2],), {})),
        ((({1, 2},), {}), (([1, 2],), {})),
        (((b"a",), {}), (("a",), {})),
        (((Decimal("1.0"),), {}), ((1.0,), {})),
        (((dt.date(2026, 1, 1),), {}), (("2026-01-01",), {})),
        (((1, 2, 3), {}), ((1, 2), {"a": 3})),
        (((1,), {"a": 1}), ((1,), {"b": 1})),
    ],
)
def test_different_calls_have_different_keys(one, other):
    assert make_key("t", *one, f) != make_key("t", *other, f)


def test_a_dict_key_that_json_would_convert_is_refused():
    with pytest.raises(PayloadError, match="make all keys str"):
        key({1: "a"})


def test_a_key_does_not_depend_on_the_order_within_dicts_and_sets():
    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert key({1, 2, 3}) == key({3, 2, 1})


def test_different_tasks_have_different_keys():
    assert make_key("a", (1,), {}, f) != make_key("b", (1,), {}, f)


def test_a_signature_may_replace_the_function():
    assert make_key("shop.charge", (1,), {}, inspect.signature(f)) == key(1)


def test_a_call_that_does_not_fit_the_signature_is_refused():
    with pytest.raises(BadArguments):
        key()


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 256])
def test_an_invalid_task_name_is_refused(name):
    with pytest.raises(BadOption):
        make_key(name, (1,), {}, f)


@dataclasses.dataclass
class Order:
    """An argument of a task."""

    id: int


def by_order(order: Order): ...


def test_different_values_of_an_annotated_class_have_different_keys():
    keys = {make_key("t", (Order(number),), {}, by_order) for number in (1, 2, 1)}

    assert len(keys) == 2


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text("ab\xe9", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", max_size=2), inner),
    max_leaves=5,
)


def is_same(one, other) -> bool:
    """Compare values and their types: to Python, True is 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(is_same(one[k], other[k]) for k in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return one == other


@given(values, values)
def test_keys_are_equal_if_and_only_if_arguments_are(one, other):
    assert (key(one) == key(other)) == is_same(one, other)
