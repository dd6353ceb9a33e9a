"""Converts Python values to JSON data and back without any loss.

A value that cannot be restored exactly is refused. In addition to the types of JSON there is a
closed list of tagged types, such as `{"$date": "2026-01-31"}`. Objects of other classes are encoded
by the `KnownClasses` of an annotation (see `class_codecs.py`).
"""

# ruff: noqa: ANN401 - this module handles values of any type

import json
import math
import re
import sys
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from types import NoneType
from typing import Any, ClassVar, Protocol, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from duly.core.json_text import to_canonical_text
from duly.limits import PAYLOAD_DEPTH

INT_MIN = -(2**63)
INT_MAX = 2**63 - 1
SCALARS = frozenset({str, int, float, bool, NoneType})
NOT_OURS = "it was written by another program or by a newer version of duly"

_PATH_CHARACTERS = 120
_PARSER_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, OSError)
_ZONE_KEY = re.compile(r"[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*")

_Kind = TypeVar("_Kind")
_Clock = TypeVar("_Clock", datetime, time)


class Unstorable(Exception):
    """A value that cannot be stored or read back. payload.py converts it to a PayloadError.

    Each container that the exception passes through adds the position of the value.
    """

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.trail: list[str | int] = []

    def path(self, argument: str) -> str:
        """Return the path of the value, such as `order.items[3]`."""
        if not argument.isprintable():
            argument = json.dumps(argument)
        for step in reversed(self.trail):
            is_name = isinstance(step, str) and step.isascii() and step.isidentifier()
            argument += f".{step}" if is_name else f"[{json.dumps(step)}]"
        if len(argument) > _PATH_CHARACTERS:
            return argument[:_PATH_CHARACTERS] + "…"
        return argument


class ClassCodec(Protocol):
    """How objects of one class are stored."""

    tag: ClassVar[str]
    is_built: ClassVar[bool]  # Decoding an object runs code of its class.

    def write(self, value: Any, encoder: "Encoder", depth: int) -> list[Any]:
        """Return the JSON data of an object. The first part alone identifies the object."""

    def read(self, parts: list[Any], depth: int) -> Any:
        """Build the object that was passed to `write`."""


class KnownClasses(Protocol):
    """The classes that an annotation names."""

    def codec_for(self, kind: type) -> ClassCodec:
        """Return the codec of this class, or raise Unstorable."""

    def codec_named(self, name: object, tag: str) -> ClassCodec:
        """Return the codec of the class named in stored text, or raise Unstorable."""


class Encoder:
    """Encodes the values of one call, which share one size limit."""

    __slots__ = ("_has_built", "_is_canonical", "_left", "_limit")

    def __init__(self, limit: int, *, canonical: bool = False) -> None:
        self._limit = limit
        # A lower bound of the text's size is counted during the walk. Without it, shared references
        # could take exponential time: for example, 60 lists that each hold the next one twice.
        self._left = limit
        self._is_canonical = canonical
        self._has_built = False

    def encode(self, value: object, names: KnownClasses) -> Any:
        """Return JSON data that `decode` turns into an equal value of the same types."""
        self._has_built = False
        data = self.walk(value, names, 0)
        if self._has_built and not self._is_canonical:
            self._check_rebuilding(data, names)
        return data

    def walk(self, value: Any, names: KnownClasses, depth: int) -> Any:
        """Encode a value that is nested inside `depth` containers."""
        kind = type(value)
        if kind in SCALARS:
            self._spend(len(value) + 2 if kind is str else 1)
            check_scalar(value)
            return value
        leaf = _SCALAR_CODECS.get(kind)
        if leaf is not None:
            data = leaf.write(value)
            self._spend(len(data))
            return {leaf.tag: data}
        self._spend(2)
        if depth >= PAYLOAD_DEPTH:
            raise Unstorable(f"is nested over {PAYLOAD_DEPTH} deep, or contains itself; flatten it")
        return self._walk_container(value, names, depth + 1)

    def walk_fields(
        self, fields: Mapping[str, object], names_of: Callable[[str], KnownClasses], depth: int
    ) -> dict[str, Any]:
        """Encode the items of a dict or the fields of an object."""
        encoded: dict[str, Any] = {}
        for name, value in fields.items():
            if type(name) is not str:
                raise Unstorable(f"has a key of type {type(name).__name__}; make all keys str")
            self._spend(len(name))
            try:
                check_scalar(name)
                encoded[name] = self.walk(value, names_of(name), depth)
            except Unstorable as refusal:
                refusal.trail.append(name)
                raise
        return encoded

    def _spend(self, characters: int) -> None:
        self._left -= characters
        if self._left < 0:
            raise Unstorable(
                f"takes more than the {self._limit} bytes allowed as stored text; store the data "
                "elsewhere and pass its location"
            )

    def _walk_container(self, value: Any, names: KnownClasses, depth: int) -> Any:
        kind = type(value)
        if kind is list:
            return self._walk_items(value, names, depth)
        if kind is dict:
            fields = self.walk_fields(value, lambda _: names, depth)
            return fields if _tag_in(fields) is None else {"$dict": fields}
        if kind is tuple:
            return {"$tuple": self._walk_items(value, names, depth)}
        if kind is set or kind is frozenset:
            # Sorted, because equal sets may iterate in any order but must give equal text.
            items = [self.walk(item, names, depth) for item in value]
            return {f"${kind.__name__}": sorted(items, key=to_canonical_text)}
        shape = names.codec_for(kind)
        self._has_built |= shape.is_built
        parts = shape.write(value, self, depth)
        return {shape.tag: [kind.__name__, *(parts[:1] if self._is_canonical else parts)]}

    def _walk_items(self, values: Iterable[object], names: KnownClasses, depth: int) -> list[Any]:
        encoded: list[Any] = []
        try:
            for value in values:
                encoded.append(self.walk(value, names, depth))  # noqa: PERF401 - its length counts
        except Unstorable as refusal:
            refusal.trail.append(len(encoded))
            raise
        return encoded

    def _check_rebuilding(self, data: object, names: KnownClasses) -> None:
        again = Encoder(self._limit).walk(decode(data, names), names, 0)
        if to_canonical_text(again) != to_canonical_text(data):
            raise Unstorable(
                "changes when it is rebuilt from its own fields (a validator or a __post_init__ "
                "changes them); make the rebuild repeatable, or pass plain values"
            )


def decode(data: Any, names: KnownClasses, depth: int = 0) -> Any:
    """Return the value that was passed to `Encoder.encode`."""
    kind = type(data)
    if kind in SCALARS:
        check_scalar(data)
        return data
    tag = _tag_in(data) if kind is dict else None
    if tag is not None and len(data) != 1:
        raise Unstorable(
            f"is stored with the tag {json.dumps(tag[:20])} among other keys; {NOT_OURS}"
        )
    if tag in _SCALAR_CODECS_BY_TAG:
        return _SCALAR_CODECS_BY_TAG[tag].read_strictly(data[tag])
    if depth >= PAYLOAD_DEPTH:
        raise Unstorable(f"is stored more than {PAYLOAD_DEPTH} levels deep; {NOT_OURS}")
    if tag is not None:
        return _decode_tagged(tag, data[tag], names, depth + 1)
    if kind is list:
        return _decode_items(data, names, depth + 1)
    return decode_fields(data, lambda _: names, depth + 1)


def decode_fields(
    fields: object, names_of: Callable[[str], KnownClasses], depth: int
) -> dict[str, Any]:
    """Decode the items of a dict or the fields of an object."""
    decoded: dict[str, Any] = {}
    for name, data in expect(dict, fields).items():
        try:
            check_scalar(name)
            decoded[name] = decode(data, names_of(name), depth)
        except Unstorable as refusal:
            refusal.trail.append(name)
            raise
    return decoded


def expect(kind: type[_Kind], data: object) -> _Kind:
    """Return stored data of the required type, or raise Unstorable."""
    if not isinstance(data, kind):
        raise Unstorable(f"is stored as {type(data).__name__}, not {kind.__name__}; {NOT_OURS}")
    return data


def check_scalar(value: object) -> None:
    """Raise Unstorable for numbers and texts that some databases cannot store."""
    if isinstance(value, str):
        if "\x00" in value:
            raise Unstorable("contains a NUL character, which databases cannot store; remove it")
        if not value.isascii():
            _check_surrogates(value)
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise Unstorable("is a NaN or infinite float, which is not JSON; pass None or a str")
    elif isinstance(value, int) and not INT_MIN <= value <= INT_MAX:
        raise Unstorable("is an int beyond 64 bits; pass it as a str or a Decimal")


def _check_surrogates(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise Unstorable("contains a lone surrogate, which is not text; pass bytes") from None


def _decode_items(items: object, names: KnownClasses, depth: int) -> list[Any]:
    decoded: list[Any] = []
    try:
        for data in expect(list, items):
            decoded.append(decode(data, names, depth))  # noqa: PERF401 - its length counts
    except Unstorable as refusal:
        refusal.trail.append(len(decoded))
        raise
    return decoded


def _decode_tagged(tag: str, data: object, names: KnownClasses, depth: int) -> Any:
    match tag:
        case "$dict":
            return decode_fields(data, lambda _: names, depth)
        case "$tuple":
            return tuple(_decode_items(data, names, depth))
        case "$set" | "$frozenset":
            items = _decode_items(data, names, depth)
            try:
                return set(items) if tag == "$set" else frozenset(items)
            except TypeError as error:
                raise Unstorable(
                    f"is stored as a set with items that a set cannot hold; {NOT_OURS}"
                ) from error
        case "$enum" | "$dataclass" | "$model":
            name, *parts = expect(list, data) or [None]
            return names.codec_named(name, tag).read(parts, depth)
        case _:
            raise Unstorable(f"is stored with the unknown tag {json.dumps(tag[:20])}; {NOT_OURS}")


def _tag_in(fields: dict[str, Any]) -> str | None:
    for name in fields:
        if name.startswith("$"):
            return name
    return None


@dataclass(frozen=True, slots=True)
class _ScalarCodec:
    """How one scalar type is stored. `read` may raise whatever the type's parser raises."""

    kind: type
    tag: str
    write: Callable[[Any], Any]
    read: Callable[[Any], Any]

    def read_strictly(self, data: object) -> Any:
        try:
            return self.read(data)
        except _PARSER_ERRORS as error:
            raise Unstorable(f"is not stored as a {self.kind.__name__}; {NOT_OURS}") from error


def _write_datetime(value: datetime) -> str | list[Any]:
    if type(value.tzinfo) is not ZoneInfo:
        return _write_clock(value)
    # The caller meant the wall time and the zone's key. The offset follows from them.
    key = value.tzinfo.key
    if not _ZONE_KEY.fullmatch(key or ""):
        raise Unstorable("has a ZoneInfo without a plain key; make it with ZoneInfo('Area/City')")
    return [value.replace(tzinfo=None).isoformat(), key, value.fold]


def _read_datetime(data: Any) -> datetime:
    value = _read_clock(datetime, data)
    if type(data) is str or data[1] is None or value.tzinfo is not None:
        return value
    if not _ZONE_KEY.fullmatch(data[1]):
        raise ValueError(data)
    return value.replace(tzinfo=ZoneInfo(data[1]))


def _write_clock(value: datetime | time) -> str | list[Any]:
    """Return ISO text of a naive or fixed-offset time, plus a zone name or fold if it has one."""
    zone = value.tzinfo
    name = None
    if type(zone) is timezone:
        offset, own_name = zone.utcoffset(None), zone.tzname(None)
        check_scalar(own_name)
        if offset.microseconds:
            # CPython reads some of these back as UTC.
            raise Unstorable("has a time zone with fractions of a second; round its offset")
        if own_name != timezone(offset).tzname(None):
            name = own_name
    elif zone is not None and not _is_pydantic_zone(zone):
        raise Unstorable(
            f"has a time zone of type {type(zone).__name__}; use datetime.timezone, or for a "
            f"datetime zoneinfo.ZoneInfo"
        )
    text = value.isoformat()
    return text if name is None and not value.fold else [text, name, value.fold]


def _read_clock(kind: type[_Clock], data: Any) -> _Clock:
    if type(data) is str:
        return kind.fromisoformat(data)
    text, name, fold = data
    value = kind.fromisoformat(text).replace(fold=fold)
    offset = value.utcoffset()
    if name is None or offset is None:
        return value
    return value.replace(tzinfo=timezone(offset, name))


def _is_pydantic_zone(zone: tzinfo) -> bool:
    """Return whether pydantic created this fixed offset, which is read back as a `timezone`."""
    pydantic_core = sys.modules.get("pydantic_core")
    return pydantic_core is not None and type(zone) is getattr(pydantic_core, "TzInfo", None)


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Unstorable("is a NaN or infinite Decimal; pass None or a str")
    return str(value)


def _read_decimal(data: Any) -> Decimal:
    value = Decimal(expect(str, data))
    if not value.is_finite():
        raise ValueError(data)
    return value


_SCALAR_CODECS = {
    leaf.kind: leaf
    for leaf in (
        _ScalarCodec(datetime, "$datetime", _write_datetime, _read_datetime),
        _ScalarCodec(date, "$date", date.isoformat, date.fromisoformat),
        _ScalarCodec(time, "$time", _write_clock, lambda data: _read_clock(time, data)),
        _ScalarCodec(
            timedelta,
            "$timedelta",
            lambda value: [value.days, value.seconds, value.microseconds],
            lambda data: timedelta(*data),
        ),
        _ScalarCodec(UUID, "$uuid", str, UUID),
        _ScalarCodec(Decimal, "$decimal", _write_decimal, _read_decimal),
        _ScalarCodec(
            bytes,
            "$bytes",
            lambda value: b2a_base64(value, newline=False).decode(),
            lambda data: a2b_base64(data, strict_mode=True),
        ),
    )
}
_SCALAR_CODECS_BY_TAG = {leaf.tag: leaf for leaf in _SCALAR_CODECS.values()}
STORED_TYPES = (str, int, float, list, dict, tuple, set, frozenset, *_SCALAR_CODECS)
"""The types that need no annotation. Their subclasses are not included."""
