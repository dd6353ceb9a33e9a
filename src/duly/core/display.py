"""Formats stored text for people: safe for a terminal, and shortened where space is limited."""

# ruff: noqa: ANN401 - this module handles values of any type

import json
from binascii import a2b_base64
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

from duly.core.escape import clean
from duly.limits import PAYLOAD_BYTES, PAYLOAD_DEPTH


def display(text: str) -> str:
    """Return a short form of a stored call or value, such as `order_id=42, note="late"`.

    It contains nothing that moves a cursor, colours a terminal or reorders text.
    """
    return _SHORT_LIMITS.shown(text)


def display_call(task: str, text: str) -> str:
    """Return a stored call in full, in the form of a call: `send(42, email="a@b.c")`."""
    return f"{clean(task.rpartition(':')[2])}({_FULL_LIMITS.shown(text)})"


def display_action(act: str) -> str:
    """Return the stored name of an operator action in the words that users see."""
    is_retry = act.startswith(("redrive", "edit and redrive"))
    return act.replace("redrive", "retry", 1) if is_retry else act


class _DisplayLimits(NamedTuple):
    """How much of a stored value is shown."""

    characters: int
    text_characters: int
    items: int
    depth: int

    def shown(self, text: str) -> str:
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return _cut(clean(text[: self.characters + 1]), self.characters)
        match data:
            case [list() as positional, dict() as named]:
                parts = (self._items(positional, 0), self._named(named, 0))
                return _cut(", ".join(filter(None, parts)), self.characters)
            case _:
                return _cut(self._show(data, 0), self.characters)

    def _show(self, data: Any, depth: int) -> str:
        if isinstance(data, str):
            return clean(json.dumps(_cut(data, self.text_characters), ensure_ascii=False))
        if not isinstance(data, list | dict):
            return str(data)
        if depth >= self.depth:
            return "…"
        if isinstance(data, list):
            return f"[{self._items(data, depth + 1)}]"
        try:
            (tag,) = data
            return self._tagged(tag, data[tag], depth)
        except (ValueError, TypeError, AttributeError, ArithmeticError):
            # Not a tag, or a tag with unexpected content. Shown as a plain dict.
            return f"{{{self._pairs(data, depth + 1)}}}"

    def _tagged(self, tag: str, data: Any, depth: int) -> str:
        match tag, data:
            case "$date" | "$datetime" | "$time" | "$uuid" | "$decimal", str():
                return clean(data)
            case "$datetime" | "$time", [str() as text, zone, _]:
                return clean(text if zone is None else f"{text}[{zone}]")
            case "$timedelta", [days, seconds, microseconds]:
                return str(timedelta(days, seconds, microseconds))
            case "$encrypted", str():
                return "(encrypted)"
            case "$bytes", str():
                return f"<{len(a2b_base64(data))} bytes>"
            case "$tuple", [item]:
                return f"({self._show(item, depth + 1)},)"
            case "$tuple", list():
                return f"({self._items(data, depth + 1)})"
            case "$set", [_, *_]:
                return f"{{{self._items(data, depth + 1)}}}"
            case "$set" | "$frozenset", list():
                return f"{tag[1:]}([{self._items(data, depth + 1)}])"
            case "$enum", [str() as name, member]:
                return clean(f"{name}.{member}")
            case "$dataclass" | "$model", [str() as name, dict() as fields, *_]:
                return f"{clean(name)}({self._named(fields, depth + 1)})"
            case "$dict", dict():
                return f"{{{self._pairs(data, depth + 1)}}}"
            case _:
                raise ValueError(tag)

    def _items(self, values: list[Any], depth: int) -> str:
        shown = [self._show(value, depth) for value in values[: self.items]]
        return ", ".join(shown + ["…"] * (len(values) > self.items))

    def _named(self, fields: dict[str, Any], depth: int) -> str:
        shown = [
            f"{clean(name)}={self._show(value, depth)}"
            for name, value in islice(fields.items(), self.items)
        ]
        return ", ".join(shown + ["…"] * (len(fields) > self.items))

    def _pairs(self, fields: dict[str, Any], depth: int) -> str:
        shown = [
            f"{self._show(name, depth)}: {self._show(value, depth)}"
            for name, value in islice(fields.items(), self.items)
        ]
        return ", ".join(shown + ["…"] * (len(fields) > self.items))


_SHORT_LIMITS = _DisplayLimits(characters=120, text_characters=40, items=8, depth=3)
# An escape may be six times as long as the character it stands for.
_FULL_LIMITS = _DisplayLimits(
    6 * PAYLOAD_BYTES, PAYLOAD_BYTES, items=PAYLOAD_BYTES, depth=2 * PAYLOAD_DEPTH
)


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
