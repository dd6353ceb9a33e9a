"""Encodes a column of many rows as one parameter: an array literal, built for the whole column.

The driver would encode each element separately, which is most of the cost of a batch in Python. No
text in PostgreSQL can contain a NUL. So a NUL separates the elements while the whole column is
escaped at once.
"""

from collections.abc import Collection, Iterable
from typing import NoReturn

from duly.store.refusal import ValueRefused


def refuse_nul() -> NoReturn:
    """Raise ValueRefused for a text that cannot be stored."""
    raise ValueRefused("a text contains a NUL character, which PostgreSQL cannot store; remove it")


def texts(items: Collection[str]) -> str:
    """Return an array of texts."""
    if not items:
        return "{}"
    joined = "\0".join(items)
    if joined.count("\0") != len(items) - 1:
        refuse_nul()
    escaped = joined.replace("\\", "\\\\").replace('"', '\\"')
    return '{"' + escaped.replace("\0", '","') + '"}'


def optional_texts(items: Collection[str | None]) -> str | None:
    """Return an array of texts and NULLs. If no text is present, return None: unnest pads NULLs."""
    present = [item for item in items if item is not None]
    if not present:
        return None
    if len(present) == len(items):
        return texts(present)
    return "{" + ",".join("NULL" if item is None else texts([item])[1:-1] for item in items) + "}"


def numbers(items: Iterable[int]) -> str:
    """Return an array of whole numbers."""
    return "{" + ",".join(map(str, items)) + "}"


def optional_numbers(items: Collection[int | None]) -> str | None:
    """Return an array of whole numbers and NULLs, or None as `optional_texts` does."""
    if all(item is None for item in items):
        return None
    return "{" + ",".join("NULL" if item is None else str(item) for item in items) + "}"


def flags(items: Iterable[bool]) -> str:
    """Return an array of booleans."""
    return "{" + ",".join("t" if item else "f" for item in items) + "}"


def array(items: Collection[str | int | bool | None]) -> str | None:
    """Return an array of values of one kind, or None if all of them are NULL."""
    kind = next((type(item) for item in items if item is not None), type(None))
    if kind is bool:
        return "{" + ",".join(map(_flag, items)) + "}"
    if kind is int:
        return optional_numbers(items)  # type: ignore[arg-type]  # the first item shows the type
    return optional_texts(items) if items else "{}"  # type: ignore[arg-type]  # as above


def _flag(item: object) -> str:
    return "NULL" if item is None else "t" if item else "f"
