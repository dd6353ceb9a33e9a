"""Classes, functions and comparisons that the tests of stored values share."""

# ruff: noqa: D101 - the name and the fields of a sample describe it

import dataclasses
import enum
import typing
from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID

import pydantic
import pytest

from duly.core.payload import CallCodec
from duly.errors import PayloadError


class Color(enum.Enum):
    RED = "red"
    CRIMSON = "red"  # noqa: PIE796 - an alias, on purpose
    BLUE = object()


class Level(enum.IntEnum):
    LOW = 1


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    article: UUID
    color: Color | None = None


@dataclasses.dataclass
class Order:
    number: int
    lines: list[Line]
    parent: "Order | None" = None
    made_at: datetime = dataclasses.field(init=False, default=datetime(2026, 1, 1, tzinfo=UTC))


@dataclasses.dataclass
class Cents:
    amount: int

    def __post_init__(self):
        self.amount *= 100


@dataclasses.dataclass
class Opened:
    path: str
    mode: dataclasses.InitVar[str]


class Address(pydantic.BaseModel):
    city: str
    zip_code: str = pydantic.Field("", alias="zipCode")


class Customer(pydantic.BaseModel, extra="allow"):
    name: str
    address: Address | None = None
    level: Level = Level.LOW
    since: datetime | None = None
    balance: Decimal = Decimal(0)


class Ids(pydantic.RootModel[list[int]]):
    pass


class Doubled(pydantic.BaseModel):
    amount: int

    @pydantic.field_validator("amount")
    @classmethod
    def double(cls, amount):
        return amount * 2


class Picky(pydantic.BaseModel):
    token: str

    @pydantic.field_validator("token")
    @classmethod
    def check(cls, token):
        if token.startswith("new"):
            return token
        raise ValueError(token)


def plain(x, y=2): ...


def anything(value: typing.Any): ...


def exactly(value):
    """Return a form of a value that compares the types of all its parts and all its details."""
    match value:
        case dict():
            return dict, [(key, exactly(item)) for key, item in value.items()]
        case list() | tuple():
            return type(value), [exactly(item) for item in value]
        case set() | frozenset():
            return type(value), sorted((exactly(item) for item in value), key=repr)
        case _:
            return type(value), repr(value)


def round_trip(function, *args, **kwargs):
    codec = CallCodec(function)
    return codec.decode(codec.encode(args, kwargs))


def refusal_of(function, *args, **kwargs):
    with pytest.raises(PayloadError) as caught:
        CallCodec(function).encode(args, kwargs)
    return caught.value


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value
