"""Calls are bound, stored, decoded, compared and redacted; results are stored and decoded."""

import enum
import hashlib
import inspect
import json
from datetime import date
from decimal import Decimal
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duly.core.payload import CallCodec, display
from duly.errors import BadArguments, PayloadError
from duly.limits import PAYLOAD_BYTES, RESULT_BYTES
from tests.core.payload_samples import (
    Color,
    Customer,
    Line,
    Mode,
    Order,
    Picky,
    anything,
    exactly,
    plain,
)


def calls():
    def positional_only(a, b=2, /, c=3): ...
    def keyword_only(a, *, b, c=3): ...
    def variadic(a, b=2, *rest, c=3): ...
    def collecting(a, /, b=2, **extra): ...
    def nothing(): ...

    return [
        (plain, (1,), {}, '[[],{"x":1}]'),
        (plain, (), {"x": 1}, '[[],{"x":1}]'),
        (plain, (1, 2), {}, '[[],{"x":1,"y":2}]'),
        (plain, (), {"y": 2, "x": 1}, '[[],{"x":1,"y":2}]'),
        (positional_only, (1,), {}, "[[1],{}]"),
        (positional_only, (1, 5, 6), {}, '[[1,5],{"c":6}]'),
        (positional_only, (1,), {"c": 6}, '[[1],{"c":6}]'),
        (keyword_only, (1,), {"c": 3, "b": 2}, '[[],{"a":1,"b":2,"c":3}]'),
        (variadic, (1, 2), {}, '[[],{"a":1,"b":2}]'),
        (variadic, (1, 2, 3, 4), {"c": 5}, '[[1,2,3,4],{"c":5}]'),
        (collecting, (1,), {"z": 1, "a": 2, "b": 3}, '[[1],{"b":3,"z":1,"a":2}]'),
        (nothing, (), {}, "[[],{}]"),
        (collecting, (1,), {"$date": 2}, '[[1],{"$date":2}]'),
    ]


@pytest.mark.parametrize(("function", "args", "kwargs", "text"), calls())
def test_equal_calls_have_equal_text_that_decodes_to_the_same_call(function, args, kwargs, text):
    codec = CallCodec(function)
    signature = inspect.signature(function)
    seen = []

    def record(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        seen.append(bound.arguments)

    assert codec.encode(args, kwargs) == text
    stored_args, stored_kwargs = codec.decode(text)
    record(*args, **kwargs)
    record(*stored_args, **stored_kwargs)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"x": 1}, "multiple values for argument 'x'"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
        ((1,), {1: 1}, "must be strings"),
    ],
)
def test_the_error_for_a_call_that_does_not_fit_shows_the_signature(args, kwargs, problem):
    for method in (CallCodec(plain).encode, CallCodec(plain).fingerprint):
        with pytest.raises(BadArguments) as caught:
            method(args, kwargs)

        assert problem in str(caught.value)
        assert str(caught.value).startswith("plain(): ")
        assert str(caught.value).endswith("; it takes (x, y=…)")


def test_a_default_is_not_stored():
    text = CallCodec(plain).encode((1,), {})

    def plain_with_another_default(x, y=3): ...

    assert CallCodec(plain_with_another_default).decode(text) == ((), {"x": 1})


def defaulting(x, y=(1, 2), *rest, z: Color = Color.RED, w=object(), **extra): ...  # noqa: B008


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (((1,), {}), ((), {"x": 1})),
        (((1,), {}), ((1, (1, 2)), {})),
        (((1,), {}), ((1,), {"z": Color.CRIMSON})),
        (((1, 2), {"z": Color.BLUE}), ((), {"z": Color.BLUE, "y": 2, "x": 1})),
        ((({"a": 1, "b": 2},), {}), (({"b": 2, "a": 1},), {})),
        ((({"a", "b", "c", "d"},), {}), (({"d", "c", "b", "a"},), {})),
        (((1,), {"p": 1, "q": 2}), ((1,), {"q": 2, "p": 1})),
    ],
)
def test_equal_calls_have_equal_fingerprints(one, other):
    codec = CallCodec(defaulting)

    assert codec.fingerprint(*one) == codec.fingerprint(*other)
    assert len(codec.fingerprint(*one)) == 64


def test_different_calls_have_different_fingerprints():
    codec = CallCodec(defaulting)
    calls = [
        *(((value,), {}) for value in (1, 1.0, True, "1", None, [], (), {}, set(), frozenset())),
        *(((value,), {}) for value in (Decimal(1), Decimal("1.0"), b"1", 0.0, -0.0, [1], [[1]])),
        *(((value,), {}) for value in (date(2026, 1, 1), "2026-01-01", {"$date": "2026-01-01"})),
        ((1, 2), {}),
        ((1, 2, 3), {}),
        ((1, 2, [3]), {}),
        ((1,), {"rest": [3]}),
        ((1,), {"z": Color.BLUE}),
        ((1,), {"w": None}),
    ]

    fingerprints = {codec.fingerprint(*call) for call in calls}

    assert len(fingerprints) == len(calls)


def test_a_fingerprint_is_the_same_in_every_process_and_release():
    canonical = b'[{"x":{"$set":["a","b"]},"y":2},[],{}]'

    assert CallCodec(plain).fingerprint(({"b", "a"},), {}) == hashlib.sha256(canonical).hexdigest()


def test_a_model_with_explicit_defaults_has_the_same_fingerprint():
    def save(change: Customer): ...

    codec = CallCodec(save)

    one = codec.fingerprint((Customer(name="a"),), {})

    assert one == codec.fingerprint((Customer(name="a", address=None),), {})
    assert one != codec.fingerprint((Customer(name="b"),), {})


def secretive(user, /, password, *codes, token=None, **settings): ...


def test_redacted_arguments_are_replaced_and_others_are_not():
    codec = CallCodec(secretive, redact=["password", "token"])

    text = codec.encode(("ann", "hush"), {"token": {"a": "hush"}, "size": 1})

    assert codec.redacted(text) == '[["ann"],{"password":"***","token":"***","size":1}]'


def test_parameters_with_names_of_secrets_are_redacted_by_default():
    codec = CallCodec(secretive)

    text = codec.encode(("ann", "hush"), {"token": "hush", "max_tokens": 9})

    assert codec.redacted(text) == '[["ann"],{"password":"***","token":"***","max_tokens":9}]'


def collecting(user, /, size, *codes, **settings): ...


def test_variadic_arguments_can_be_redacted():
    codec = CallCodec(collecting, redact=["user", "codes", "settings"])

    text = codec.encode(("ann", "shown", "hush", "hush"), {"key": "hush"})

    assert codec.redacted(text) == '[["***","shown","***","***"],{"key":"***"}]'


def test_only_parameters_can_be_redacted():
    with pytest.raises(ValueError, match="no parameter 'passwort'"):
        CallCodec(secretive, redact=["passwort"])


def test_an_error_about_a_redacted_argument_does_not_quote_its_value():
    def log_in(password: dict[str, Picky]): ...

    codec = CallCodec(log_in, redact=["password"])
    text = '[[],{"password":{"hush":{"$model":["Picky",{"token":"hush"}]}}}]'

    with pytest.raises(PayloadError) as caught:
        codec.decode(text)

    assert caught.value.argument == "password"
    assert "hush" not in str(caught.value)
    assert caught.value.__cause__ is None


HOSTILE = [
    "",
    "null",
    "{}",
    "[]",
    "[[],{}",
    "[[],{}] ",
    "[[],[]]",
    "[{},[]]",
    "[[],{},{}]",
    "[[1,2],{}]",
    '[[],{"other":1}]',
    '[[1],{"value":1}]',
    '[[1,2],{"value":1}]',
    '[[],{"value":NaN}]',
    '[[],{"value":-Infinity}]',
    '[[],{"value":1e999}]',
    f'[[],{{"value":{2**63}}}]',
    f'[[],{{"value":{"9" * 5000}}}]',
    '[[],{"value":"\\u0000"}]',
    '[[],{"value":"\\ud800"}]',
    '[[],{"value":"\ud800"}]',
    '[[],{"value":{"\\u0000":1}}]',
    '[[],{"value":' + "[" * 65 + "]" * 65 + "}]",
    '[[],{"value":' + '{"a":' * 65 + "1" + "}" * 65 + "}]",
    '[[],{"value":' + '{"$tuple":[' * 65 + "]}" * 65 + "}]",
    '[[],{"value":' + "[" * 100_000 + "]" * 100_000 + "}]",
    "[" * 100_000,
    *(
        f'[[],{{"value":{value}}}]'
        for value in (
            '{"$unknown":1}',
            '{"$":1}',
            '{"$date":"2026-01-01","a":1}',
            '{"$date":"2026-13-01"}',
            '{"$date":1}',
            '{"$datetime":"yesterday"}',
            '{"$datetime":[]}',
            '{"$datetime":{}}',
            '{"$datetime":null}',
            '{"$datetime":["2026-01-01T00:00:00","No/Where",0]}',
            '{"$datetime":["2026-01-01T00:00:00","../../etc/passwd",0]}',
            '{"$datetime":["2026-01-01T00:00:00","/etc/passwd",0]}',
            '{"$datetime":["2026-01-01T00:00:00","Europe",0]}',
            '{"$datetime":["2026-01-01T00:00:00","UTC",2]}',
            '{"$datetime":["2026-01-01T00:00:00",{},0]}',
            '{"$datetime":["2026-01-01T00:00:00+01:00",1,0]}',
            '{"$time":"25:00"}',
            '{"$timedelta":[1e300,0,0]}',
            '{"$timedelta":"123"}',
            '{"$timedelta":5}',
            '{"$uuid":"1"}',
            '{"$uuid":[1]}',
            '{"$decimal":"NaN"}',
            '{"$decimal":"one"}',
            '{"$decimal":1.5}',
            '{"$bytes":"?"}',
            '{"$bytes":"YQ"}',
            '{"$bytes":[1]}',
            '{"$set":[[]]}',
            '{"$set":{}}',
            '{"$frozenset":1}',
            '{"$tuple":"ab"}',
            '{"$dict":[]}',
            '{"$dict":{"a":{"$unknown":1}}}',
            '{"$enum":[]}',
            '{"$enum":"RED"}',
            '{"$enum":["Color"]}',
            '{"$enum":["Color","GREEN"]}',
            '{"$enum":["Color",[]]}',
            '{"$enum":["Mode","READ"]}',
            '{"$enum":["Mode",64]}',
            '{"$enum":[{},"RED"]}',
            '{"$dataclass":["Line"]}',
            '{"$dataclass":["Line",[]]}',
            '{"$dataclass":["Line",{}]}',
            '{"$dataclass":["Line",{"article":1,"__class__":2}]}',
            '{"$dataclass":["Line",{"article":1},2]}',
            '{"$model":["Customer",{"name":[]}]}',
            '{"$model":["Customer"]}',
            '{"$model":["Customer",{"name":"a"},{}]}',
            '{"$model":["os.system",{"command":"true"}]}',
        )
    ),
]


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:60].encode("unicode_escape"))
def test_text_that_duly_never_writes_is_refused(text):
    def careful(value: Color | Mode | Line | Customer): ...

    codec = CallCodec(careful, redact=["value"])

    with pytest.raises(PayloadError):
        codec.decode(text)
    assert codec.redacted(text) in ("***", '[[],{"value":"***"}]')
    assert display(text).isprintable()


@pytest.mark.parametrize("boundary", [enum.CONFORM, enum.EJECT])
def test_a_flag_that_its_lenient_class_no_longer_has_is_refused(boundary):
    class Lenient(enum.Flag, boundary=boundary):
        READ = 1

    def lenient(value: Lenient): ...

    codec = CallCodec(lenient)

    with pytest.raises(PayloadError, match="a member that Lenient does not have"):
        codec.decode('[[],{"value":{"$enum":["Lenient",3]}}]')


@given(st.text() | st.binary() | st.none())
def test_decoding_arbitrary_text_raises_only_payload_errors(text):
    codec = CallCodec(anything)

    with pytest.raises(PayloadError):
        codec.decode(text)
    assert codec.redacted(text) == "***"


TAGS = [
    *("$datetime", "$date", "$time", "$timedelta", "$uuid", "$decimal", "$bytes"),
    *("$set", "$frozenset", "$tuple", "$dict", "$enum", "$dataclass", "$model"),
]
json_values = st.recursive(
    st.one_of(
        st.none(), st.integers(-1, 2), st.text(max_size=2), st.sampled_from(["Color", "UTC"])
    ),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3),
        st.dictionaries(st.text(max_size=2), parts, max_size=2),
        st.builds(
            lambda tag, data: {tag: data},
            st.sampled_from(TAGS),
            parts,
        ),
    ),
    max_leaves=8,
)


@given(json_values)
def test_stored_data_of_any_shape_is_decoded_or_refused_and_can_be_shown(data):
    def careful(value: Color | Mode | Line | Order | Customer): ...

    codec = CallCodec(careful)
    text = json.dumps([[], {"value": data}])

    assert display(text).isprintable()
    codec.redacted(text)
    try:
        args, kwargs = codec.decode(text)
    except PayloadError:
        return
    again = codec.decode(codec.encode(args, kwargs))
    assert exactly(again) == exactly((args, kwargs))


def test_a_result_is_restored_and_none_is_not_stored():
    def make() -> list[Order]: ...

    codec = CallCodec(make)
    orders = [Order(1, [Line(UUID(int=0), Color.RED)])]

    assert codec.encode_result(None) is None
    assert codec.decode_result(None) is None
    assert codec.encode_result(5) == "5"
    assert codec.decode_result(codec.encode_result(orders)) == orders


def test_a_result_has_its_own_limit():
    codec = CallCodec(plain)

    assert codec.encode_result("x" * PAYLOAD_BYTES * 2)
    for much in ("x" * RESULT_BYTES, "é" * (RESULT_BYTES // 2)):
        with pytest.raises(PayloadError) as caught:
            codec.encode_result(much)
        assert caught.value.argument == "return value"


def test_a_result_that_cannot_be_stored_is_refused():
    with pytest.raises(PayloadError) as caught:
        CallCodec(plain).encode_result([object()])

    assert caught.value.argument == "return value[0]"
