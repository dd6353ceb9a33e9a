"""Shows stored text to people, shortened, and harmless to a terminal."""

# ruff: noqa: ANN401 - values of any type are what this module is about

import json
from binascii import a2b_base64
from datetime import timedelta
from itertools import islice
from typing import Any

_CHARACTERS = 120
_TEXT_CHARACTERS = 40
_ITEMS = 8
_DEPTH = 3


def display(text: str) -> str:
    """Return a short form of a stored call or value, such as `order_id=42, note="late"`.

    Nothing in it can move a cursor, colour a terminal or reorder what is read.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return _cut(_escape(text[: _CHARACTERS + 1]), _CHARACTERS)
    match data:
        case [list() as positional, dict() as named]:
            parts = (_items(positional, 0), _fields(named, 0))
            return _cut(", ".join(filter(None, parts)), _CHARACTERS)
        case _:
            return _cut(_show(data, 0), _CHARACTERS)


def _show(data: Any, depth: int) -> str:
    if isinstance(data, str):
        return _escape(json.dumps(_cut(data, _TEXT_CHARACTERS), ensure_ascii=False))
    if not isinstance(data, list | dict):
        return str(data)
    if depth >= _DEPTH:
        return "…"
    if isinstance(data, list):
        return f"[{_items(data, depth + 1)}]"
    try:
        (tag,) = data
        return _show_tagged(tag, data[tag], depth)
    except (ValueError, TypeError, AttributeError, ArithmeticError):
        # Not a tag, or one that is not stored as it should be: shown as the dict it is.
        return f"{{{_pairs(data, depth + 1)}}}"


def _show_tagged(tag: str, data: Any, depth: int) -> str:
    match tag, data:
        case "$date" | "$datetime" | "$time" | "$uuid" | "$decimal", str():
            return _escape(data)
        case "$datetime" | "$time", [str() as text, zone, _]:
            return _escape(text if zone is None else f"{text}[{zone}]")
        case "$timedelta", [days, seconds, microseconds]:
            return str(timedelta(days, seconds, microseconds))
        case "$bytes", str():
            return f"<{len(a2b_base64(data))} bytes>"
        case "$tuple", [item]:
            return f"({_show(item, depth + 1)},)"
        case "$tuple", list():
            return f"({_items(data, depth + 1)})"
        case "$set", [_, *_]:
            return f"{{{_items(data, depth + 1)}}}"
        case "$set" | "$frozenset", list():
            return f"{tag[1:]}([{_items(data, depth + 1)}])"
        case "$enum", [str() as name, member]:
            return _escape(f"{name}.{member}")
        case "$dataclass" | "$model", [str() as name, dict() as fields, *_]:
            return f"{_escape(name)}({_fields(fields, depth + 1)})"
        case "$dict", dict():
            return f"{{{_pairs(data, depth + 1)}}}"
        case _:
            raise ValueError(tag)


def _items(values: list[Any], depth: int) -> str:
    shown = [_show(value, depth) for value in values[:_ITEMS]]
    return ", ".join(shown + ["…"] * (len(values) > _ITEMS))


def _fields(fields: dict[str, Any], depth: int) -> str:
    shown = [
        f"{_escape(name)}={_show(value, depth)}" for name, value in islice(fields.items(), _ITEMS)
    ]
    return ", ".join(shown + ["…"] * (len(fields) > _ITEMS))


def _pairs(fields: dict[str, Any], depth: int) -> str:
    shown = [
        f"{_show(name, depth)}: {_show(value, depth)}"
        for name, value in islice(fields.items(), _ITEMS)
    ]
    return ", ".join(shown + ["…"] * (len(fields) > _ITEMS))


def _escape(text: str) -> str:
    # Unprintable are all control and format characters, those that set a direction among them.
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text
    )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
