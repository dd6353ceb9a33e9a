"""What the function of a step returned, as text: plain values, or what its annotation names."""

from collections.abc import Callable
from typing import Any

from duly.core.payload import CallCodec, decode_value, encode_value
from duly.errors import PayloadError, StepNotKept


def encode_returned(
    step: str, function: Callable[..., Any], value: object, *, in_transaction: bool
) -> str | None:
    """Return the text to store for what a step returned, or None for None."""
    if value is None:
        return None
    try:
        return encode_value(value)
    except PayloadError as error:
        codec = _annotated(function)
        if codec is None:
            raise StepNotKept(step, error, is_undone=in_transaction) from error
        try:
            return codec.encode_result(value)
        except PayloadError as refused:
            raise StepNotKept(step, refused, is_undone=in_transaction) from refused


def decode_returned(function: Callable[..., Any], text: str | None) -> Any:  # noqa: ANN401 - any result
    """Return what was stored so."""
    if text is None:
        return None
    try:
        return decode_value(text)
    except PayloadError:
        codec = _annotated(function)
        if codec is None:
            raise
        return codec.decode_result(text)


def _annotated(function: Callable[..., Any]) -> CallCodec | None:
    """Return what knows the classes of a function's annotation; it costs, and few need it."""
    try:
        return CallCodec(function)
    except (TypeError, ValueError):
        return None  # Some that are written in C have no signature.
