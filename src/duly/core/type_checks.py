"""Checks that a value matches an annotation, as far as this can be decided with certainty.

This is for arguments that people write as JSON; a type checker covers calls from code. A value
matches any annotation that is unknown here, such as a protocol or an application's own class.
"""

# ruff: noqa: ANN401 - this module handles values of any type

import dataclasses
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from inspect import isclass
from typing import Any
from uuid import UUID

from duly.core.values import Unstorable

_PLAIN: dict[type, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    bytes: (bytes,),
    types.NoneType: (types.NoneType,),
    **{kind: (kind,) for kind in (date, datetime, time, timedelta, Decimal, UUID)},
    **{kind: (kind,) for kind in (list, dict, set, frozenset)},
    tuple: (tuple, list),  # JSON has only lists.
}
_FORMS = {
    bytes: '{"$bytes": "aGk="}',
    date: '{"$date": "2030-01-31"}',
    datetime: '{"$datetime": "2030-01-31T08:00:00+00:00"}',
    time: '{"$time": "08:00:00"}',
    timedelta: '{"$timedelta": [0, 90, 0]}, of days, seconds and microseconds',
    Decimal: '{"$decimal": "1.50"}',
    UUID: '{"$uuid": "…"}',
    set: '{"$set": […]}',
    frozenset: '{"$frozenset": […]}',
}
"""How to write values of types that JSON lacks."""
_MEMBERS = 10


def check_type(value: Any, resolve: Callable[[], Any]) -> None:
    """Raise Unstorable if a value does not match an annotation or lacks a required part."""
    try:
        hint = resolve()
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError):
        return  # The annotation names something that does not exist at run time.
    _check(value, hint)


def _check(value: Any, hint: Any) -> None:
    hint = _bare(hint)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {typing.Union, types.UnionType}:
        _check_any(value, arguments)
    elif origin is typing.Literal:
        if not any(type(value) is type(one) and value == one for one in arguments):
            known = " or ".join(map(repr, arguments))
            raise Unstorable(f"must be {known:.200}")
    elif isclass(origin):
        _check_kind(value, origin)
        _check_items(value, origin, arguments)
    elif typing.is_typeddict(hint):
        _check_kind(value, dict)
        missing = sorted(hint.__required_keys__ - value.keys())
        if missing:
            raise Unstorable(f"lacks {', '.join(missing)}, which {hint.__name__} has")
        _check_fields(value.items(), hint)
    elif isclass(hint):
        _check_kind(value, hint)
        if dataclasses.is_dataclass(hint):
            fields = (field.name for field in dataclasses.fields(hint))
            _check_fields(
                ((name, getattr(value, name)) for name in fields if hasattr(value, name)), hint
            )


def _bare(hint: Any) -> Any:
    """Return the type that an alias stands for."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif hasattr(hint, "__value__") and not isclass(hint):
            hint = hint.__value__
        else:
            return types.NoneType if hint is None else hint


def _check_any(value: Any, hints: Collection[Any]) -> None:
    refusals = []
    for hint in hints:
        try:
            _check(value, hint)
        except Unstorable as refusal:
            refusals.append(refusal)
        else:
            return
    # The refusal with the longest path has the most specific message.
    furthest = max(refusals, key=lambda refusal: len(refusal.trail))
    if furthest.trail:
        raise furthest
    names = " or ".join(_name(hint) for hint in hints)
    raise Unstorable(f"must be {names}, not {_name(type(value))}")


def _check_kind(value: Any, kind: type) -> None:
    known = _PLAIN.get(kind)
    if known is None:
        is_ours = issubclass(kind, Enum) or dataclasses.is_dataclass(kind)
        is_abstract = kind.__module__ == "collections.abc"
        is_model = hasattr(kind, "__pydantic_validator__")
        known = (kind,) if is_ours or is_abstract or is_model else (object,)
    if not isinstance(value, known):
        raise Unstorable(f"must be {_name(kind)}, not {_name(type(value))}{_form(kind)}")


def _check_items(value: Any, kind: type, hints: tuple[Any, ...]) -> None:
    if issubclass(kind, tuple) and hints and hints[-1] is not Ellipsis:
        if len(value) != len(hints):
            raise Unstorable(f"must have {len(hints)} items, not {len(value)}")
        _check_each(enumerate(zip(value, hints, strict=True)))
    elif isinstance(value, Mapping):
        hint = hints[1] if len(hints) > 1 else Any
        _check_each((key, (item, hint)) for key, item in value.items())
    elif isinstance(value, Collection) and not isinstance(value, str | bytes) and hints:
        _check_each(enumerate((item, hints[0]) for item in value))


def _check_fields(fields: Iterable[tuple[str, Any]], kind: type) -> None:
    try:
        hints = typing.get_type_hints(kind)
    except (NameError, AttributeError, TypeError):
        return
    _check_each((name, (value, hints.get(name, Any))) for name, value in fields)


def _check_each(pairs: Iterable[tuple[str | int, tuple[Any, Any]]]) -> None:
    for place, (value, hint) in pairs:
        try:
            _check(value, hint)
        except Unstorable as refusal:
            refusal.trail.append(place)
            raise


def _name(hint: Any) -> str:
    if hint is None or hint is types.NoneType:
        return "null"
    return getattr(hint, "__name__", None) or str(hint)


def _form(kind: type) -> str:
    """Return a hint on how to write a value of this type."""
    if issubclass(kind, Enum):
        names = ", ".join(list(kind.__members__)[:_MEMBERS])
        return f'; write {{"$enum": ["{kind.__name__}", …]}} with one of {names}'
    if dataclasses.is_dataclass(kind):
        return f'; write {{"$dataclass": ["{kind.__name__}", {{…}}]}}'
    if hasattr(kind, "__pydantic_validator__"):
        return f'; write {{"$model": ["{kind.__name__}", {{…}}]}}'
    return f"; write {_FORMS[kind]}" if kind in _FORMS else ""
