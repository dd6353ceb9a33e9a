"""Converts the result of a step to text: plain values, or the classes that its annotation names."""

from collections.abc import Callable
from typing import Any

from duly.core.codec import Codec
from duly.core.payload import CallCodec, decode_value, encode_value
from duly.errors import PayloadError, StepNotKept


def encode_returned(
    step: str,
    function: Callable[..., Any],
    value: object,
    codec: Codec | None,
    *,
    in_transaction: bool,
) -> str | None:
    """Return the text to store for the result of a step, or None for None.

    `codec` is the codec of the task. A codec that encrypts the task's result also encrypts the
    results of its steps.
    """
    if value is None:
        return None
    text = _encoded(step, function, value, in_transaction=in_transaction)
    return text if codec is None or text is None else codec.seal(text)


def _encoded(
    step: str, function: Callable[..., Any], value: object, *, in_transaction: bool
) -> str | None:
    try:
        return encode_value(value)
    except PayloadError as error:
        own = _annotated(function)
        if own is None:
            raise StepNotKept(step, error, is_undone=in_transaction) from error
        try:
            return own.encode_result(value)
        except PayloadError as refused:
            raise StepNotKept(step, refused, is_undone=in_transaction) from refused


def decode_returned(function: Callable[..., Any], text: str | None, codec: Codec | None) -> Any:  # noqa: ANN401 - any result
    """Return the result of a stored text."""
    if text is None:
        return None
    text = text if codec is None else codec.unseal(text)
    try:
        return decode_value(text)
    except PayloadError:
        own = _annotated(function)
        if own is None:
            raise
        return own.decode_result(text)


def _annotated(function: Callable[..., Any]) -> CallCodec | None:
    """Return a codec for the classes in a function's annotation. Slow, and rarely needed."""
    try:
        return CallCodec(function)
    except (TypeError, ValueError):
        return None  # Some functions written in C have no signature.
