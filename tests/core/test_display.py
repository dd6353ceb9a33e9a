"""Stored text in the form shown to people."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest

from duly.core.display import display_call
from duly.core.payload import CallCodec, display, encode_value
from tests.core.payload_samples import Color, Customer, Line, nested


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ({"order_id": 42, "email": "a@b.c"}, 'order_id=42, email="a@b.c"'),
        ({"a": None, "b": [True, 1.5]}, "a=None, b=[True, 1.5]"),
        ({"at": datetime(2026, 1, 1, tzinfo=UTC)}, "at=2026-01-01T00:00:00+00:00"),
        (
            {"at": datetime(2026, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo"))},
            "at=2026-01-01T00:00:00[Asia/Tokyo]",
        ),
        ({"wait": timedelta(hours=1)}, "wait=1:00:00"),
        ({"price": Decimal("1.50"), "raw": b"abc"}, "price=1.50, raw=<3 bytes>"),
        ({"s": {1}, "e": set(), "f": frozenset()}, "s={1}, e=set([]), f=frozenset([])"),
        ({"t": (1,), "u": (1, 2), "d": {"$a": {}}}, 't=(1,), u=(1, 2), d={"$a": {}}'),
        ({"a": "\x1b[31m\u202e\n"}, r'a="\u001b[31m\u202e\n"'),
        ({"x": {"$date": 1, "b": 2}}, 'x={"$date": 1, "b": 2}'),
        ({"a": nested(9)}, "a=[[[…]]]"),
        ({"a": list(range(100))}, "a=[0, 1, 2, 3, 4, 5, 6, 7, …]"),
    ],
)
def test_a_call_is_shown_shortened_and_escaped(arguments, shown):
    def anyhow(**arguments): ...

    assert display(CallCodec(anyhow).encode((), arguments)) == shown


def test_an_object_is_shown_as_a_call_of_its_class():
    def ship(line: Line, customer: Customer): ...

    text = CallCodec(ship).encode((Line(UUID(int=1), Color.RED), Customer(name="a")), {})

    assert display(text).startswith(
        "line=Line(article=00000000-0000-0000-0000-000000000001, color=Color.RED), "
        'customer=Customer(name="a", '
    )


def test_the_shown_text_has_a_maximum_length():
    shown = display(encode_value({"a" * 500: ["x" * 500] * 500}))

    assert len(shown) <= 120
    assert shown.endswith("…")


def test_a_call_can_be_shown_in_full():
    text = json.dumps([[1, nested(60), "x" * 500], {"b": list(range(20)), "c": "\u202e"}])

    shown = display_call("shop.tasks:Mail.send", text)

    assert shown.startswith("Mail.send(1, [[[")
    assert shown.endswith(r'17, 18, 19], c="\u202e")')
    assert "x" * 500 in shown
    assert "…" not in shown
    assert display_call("send", "damaged \x1b") == r"send(damaged \x1b)"
