"""Arguments written as JSON must fit the annotations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, NotRequired, Protocol, TypedDict

import pytest
from pydantic import BaseModel

from duly.core.payload import CallCodec
from duly.errors import PayloadError


class Colour(Enum):
    """An enum."""

    RED = 1
    GREEN = 2


@dataclass
class Item:
    """A dataclass."""

    name: str
    count: int = 1


@dataclass
class Order:
    """A dataclass that contains other dataclasses."""

    items: list[Item]
    note: str | None = None


class Model(BaseModel):
    """A model that validates itself."""

    size: int


class Address(TypedDict):
    """A typed dict."""

    city: str
    zip: NotRequired[int]


class Greets(Protocol):
    """A protocol, which cannot be checked."""

    def greet(self) -> None: ...


class Mine:
    """A class of the application."""


OrderId = NewType("OrderId", int)
RED = {"$enum": ["Colour", "RED"]}
LAMP = {"$dataclass": ["Item", {"name": "lamp", "count": 2}]}


def taking(annotation):
    def task(it): ...

    task.__annotations__["it"] = annotation
    return CallCodec(task)


FITS = [
    (int, 1),
    (int, True),
    (float, 1),
    (float | None, None),
    (OrderId, 7),
    (Annotated[int, "positive"], 7),
    (str, "a"),
    (date, {"$date": "2030-01-31"}),
    (Decimal, {"$decimal": "1.5"}),
    (Colour, RED),
    (Item, LAMP),
    (Order, {"$dataclass": ["Order", {"items": [LAMP]}]}),
    (Model, {"$model": ["Model", {"size": 1}]}),
    (Address, {"city": "Ulm"}),
    (list[int], [1, 2]),
    (tuple[int, str], {"$tuple": [1, "a"]}),
    (tuple[int, ...], [1, 2]),
    (Sequence[str], ["a"]),
    (dict[str, int], {"a": 1}),
    (Mapping[str, list[int]], {"a": [1]}),
    (set[int], {"$set": [1]}),
    (Literal["a", 2], 2),
    (Any, {"a": [None]}),
    (object, 1),
    (Greets, 1),
    (Mine, 1),
    ("Missing", 1),
    (None, None),
]


@pytest.mark.parametrize(("annotation", "given"), FITS, ids=repr)
def test_a_value_that_fits_its_annotation_is_accepted(annotation, given):
    args, kwargs = taking(annotation).from_json([], {"it": given})

    assert (args, list(kwargs)) == ((), ["it"])


MISFITS = [
    (int, "7", "it: must be int, not str"),
    (int, 1.5, "must be int, not float"),
    (int, None, "must be int, not null"),
    (bool, 1, "must be bool, not int"),
    (str, 1, "must be str, not int"),
    (OrderId, "7", "must be int, not str"),
    (int | None, "7", "must be int or null, not str"),
    (date, "2030-01-31", '{"$date": "2030-01-31"}'),
    (datetime, {"$date": "2030-01-31"}, "must be datetime, not date"),
    (Colour, "RED", '{"$enum": ["Colour", …]} with one of RED, GREEN'),
    (Colour, {"$enum": ["Colour", "BLUE"]}, "does not have"),
    (Item, {"name": "lamp"}, '{"$dataclass": ["Item", {…}]}'),
    (Item, {"$dataclass": ["Item", {"count": 1}]}, "cannot be built as Item"),
    (Item, {"$dataclass": ["Item", {"name": 1}]}, "it.name: must be str, not int"),
    (Model, {"$model": ["Model", {"size": "x"}]}, "cannot be built as Model"),
    (Model, {"size": 1}, '{"$model": ["Model", {…}]}'),
    (Address, {"zip": 1}, "lacks city"),
    (Address, {"city": "Ulm", "zip": "x"}, "it.zip: must be int"),
    (list[int], [1, "a"], "it[1]: must be int, not str"),
    (list[int], "ab", "must be list, not str"),
    (tuple[int, str], [1], "must have 2 items, not 1"),
    (dict[str, int], {"a": "b"}, "it.a: must be int, not str"),
    (dict[str, int] | None, {"a": "b"}, "it.a: must be int, not str"),
    (set[int], [1], '{"$set": […]}'),
    (Sequence[int], 1, "must be Sequence, not int"),
    (Literal["a", "b"], "c", "must be 'a' or 'b'"),
]


@pytest.mark.parametrize(("annotation", "given", "words"), MISFITS, ids=repr)
def test_a_value_that_does_not_fit_its_annotation_is_refused(annotation, given, words):
    with pytest.raises(PayloadError) as refused:
        taking(annotation).from_json([], {"it": given})

    assert words in str(refused.value)


def test_each_variadic_argument_is_checked():
    def task(*numbers: int, **texts: str): ...

    codec = CallCodec(task)
    assert codec.from_json([1, 2], {"a": "b"}) == ((1, 2), {"a": "b"})
    with pytest.raises(PayloadError, match=r"numbers\[1\]: must be int"):
        codec.from_json([1, "x"], {})
    with pytest.raises(PayloadError, match="a: must be str"):
        codec.from_json([], {"a": 1})


def test_a_parameter_with_the_default_none_accepts_none():
    def task(number: int = None): ...  # noqa: RUF013 - as people write it

    assert CallCodec(task).from_json([], {"number": None}) == ((), {"number": None})


def test_an_error_about_a_redacted_argument_does_not_show_its_dict_keys():
    def task(card: dict[str, int]): ...

    with pytest.raises(PayloadError) as refused:
        CallCodec(task, redact=("card",)).from_json([], {"card": {"4111-2222": "x"}})

    assert "4111" not in str(refused.value)
