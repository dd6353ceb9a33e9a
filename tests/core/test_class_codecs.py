"""Enums, dataclasses and models are stored only if an annotation names their class."""

import dataclasses
import subprocess
import sys
import typing
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from duly.core.payload import CallCodec
from duly.errors import PayloadError
from tests.core.payload_samples import (
    Address,
    Cents,
    Color,
    Customer,
    Doubled,
    Ids,
    Level,
    Line,
    Mode,
    Opened,
    Order,
    anything,
    exactly,
    refusal_of,
    round_trip,
)


def classy():
    def enum_alone(x: Color): ...
    def enum_or_none(x: Color | None = None): ...
    def enum_in_list(x: list[Color]): ...
    def enum_in_dict(x: dict[str, Color]): ...
    def enum_in_tuple(x: tuple[Color, ...]): ...
    def enum_in_set(x: set[Color]): ...
    def enum_in_literal(x: typing.Literal[Color.RED]): ...
    def enum_annotated(x: typing.Annotated[typing.Optional["Color"], "note"]): ...
    def integer_enum(x: Level): ...
    def flag(x: "Mode"): ...
    def order(x: "Order"): ...
    def either(x: Order | Line | Color): ...
    def model(x: Customer | None): ...
    def root_model(x: Ids): ...
    def collected(*x: Color): ...

    line = Line(UUID(int=7), Color.BLUE)
    address = Address(city="Köln", zipCode="50667")
    since = datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    return [
        (enum_alone, Color.RED),
        (enum_alone, "red"),
        (enum_or_none, Color.CRIMSON),
        (enum_or_none, None),
        (enum_in_list, [Color.RED, Color.BLUE]),
        (enum_in_dict, {"a": Color.RED, "$b": Color.BLUE}),
        (enum_in_tuple, (Color.RED,)),
        (enum_in_set, {Color.RED, Color.BLUE}),
        (enum_in_literal, Color.RED),
        (enum_annotated, Color.RED),
        (integer_enum, Level.LOW),
        (integer_enum, 1),
        (flag, Mode.READ | Mode.WRITE),
        (flag, Mode(0)),
        (order, Order(1, [line], Order(2, []))),
        (either, line),
        (either, Order(1, [])),
        (either, Color.BLUE),
        (model, Customer(name="a", address=address, since=since, nick="b")),
        (model, Customer(name="a", balance=Decimal("1.50"))),
        (root_model, Ids([1, 2])),
    ]


@pytest.mark.parametrize(("function", "value"), classy())
def test_an_object_of_an_annotated_class_is_restored_exactly(function, value):
    _, arguments = round_trip(function, value)

    assert arguments["x"] == value
    assert exactly(arguments["x"]) == exactly(value)


def test_variadic_arguments_may_be_objects_of_an_annotated_class():
    def paint(*colors: Color, **names: Color): ...

    assert round_trip(paint, Color.RED, Color.BLUE) == ((Color.RED, Color.BLUE), {})
    assert round_trip(paint, a=Color.RED) == ((), {"a": Color.RED})
    assert refusal_of(paint, Color.RED, Level.LOW).argument == "colors[1]"
    assert refusal_of(paint, a=[Level.LOW]).argument == "a[0]"


def test_the_unset_fields_of_a_model_stay_unset():
    def save(change: Customer): ...

    change = Customer(name="a", balance=Decimal(3), other=1)

    _, arguments = round_trip(save, change)

    assert arguments["change"].model_dump(exclude_unset=True) == change.model_dump(
        exclude_unset=True
    )


def test_a_field_that_the_constructor_does_not_set_is_restored():
    def ship(order: Order): ...

    order = Order(1, [])
    order.made_at = datetime(2020, 1, 1, tzinfo=UTC)

    _, arguments = round_trip(ship, order)

    assert arguments["order"] == order


@pytest.mark.parametrize(
    ("kind", "value"),
    [(Cents, Cents(1)), (Doubled, Doubled(amount=1)), (Opened, Opened("a", "r"))],
)
def test_an_object_that_cannot_be_rebuilt_from_its_fields_is_refused_at_the_call(kind, value):
    def pay(x): ...

    pay.__annotations__["x"] = kind

    assert "built" in refusal_of(pay, [value]).problem


def test_a_subclass_of_an_annotated_class_is_refused():
    class Special(Line):
        pass

    def ship(line: Line): ...

    assert refusal_of(ship, Special(UUID(int=0))).argument == "line"


def test_an_error_contains_its_position_in_an_object():
    def ship(order: Order): ...

    order = Order(1, [Line(UUID(int=0)), Line(2**63)])

    assert refusal_of(ship, order).argument == "order.lines[1].article"


def test_an_unresolvable_annotation_affects_only_values_that_need_it():
    def ship(order: "Missing", note: str): ...  # noqa: F821 - that is the point

    assert round_trip(ship, 1, "a") == ((), {"order": 1, "note": "a"})
    assert "TYPE_CHECKING" in refusal_of(ship, Color.RED, "a").problem


def test_a_class_that_is_defined_after_the_codec_is_found():
    def ship(box: "LaterBox"): ...  # noqa: F821 - defined below

    codec = CallCodec(ship)
    globals()["LaterBox"] = later = dataclasses.make_dataclass("LaterBox", ["size"])

    try:
        assert codec.decode(codec.encode((later(1),), {})) == ((), {"box": later(1)})
    finally:
        del globals()["LaterBox"]


def test_two_classes_with_one_name_in_one_annotation_are_refused():
    another = dataclasses.make_dataclass("Line", ["size"])

    def ship(line: Line | another): ...

    assert "two classes called Line" in refusal_of(ship, another(1)).problem


def test_a_renamed_class_still_decodes_text_with_its_old_name():
    def before(x: Color): ...
    def after(x: Mode | Level): ...
    def unsure(x: Level | Color): ...

    text = CallCodec(before).encode((Color.RED,), {})

    assert CallCodec(before).decode(text.replace("Color", "Paint")) == ((), {"x": Color.RED})
    assert CallCodec(unsure).decode(text) == ((), {"x": Color.RED})
    with pytest.raises(PayloadError):
        CallCodec(after).decode(text)


def test_stored_text_cannot_create_an_object_of_a_class_without_annotation():
    text = '[[],{"value":{"$dataclass":["Order",{"number":1,"lines":[]}]}}]'

    with pytest.raises(PayloadError) as caught:
        CallCodec(anything).decode(text)

    assert caught.value.argument == "value"


def test_a_new_field_with_a_default_may_be_missing_in_stored_text():
    def ship(line: Line): ...

    codec = CallCodec(ship)
    article = '{"$uuid":"00000000-0000-0000-0000-000000000007"}'

    text = f'[[],{{"line":{{"$dataclass":["Line",{{"article":{article}}}]}}}}]'

    assert codec.decode(text) == ((), {"line": Line(UUID(int=7))})
    with pytest.raises(PayloadError):
        codec.decode(text.replace("article", "product"))


def test_duly_does_not_import_pydantic():
    program = "import sys, duly.core.payload; print('pydantic' in sys.modules)"

    result = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert result.stdout.strip() == b"False"
