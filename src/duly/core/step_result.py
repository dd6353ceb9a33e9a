"""What the function of a step returned, as text: plain values, or what its annotation names."""

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
    """Return the text to store for what a step returned, or None for None.

    `codec` is that of the task: what encrypts its result encrypts those of its steps.
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
    """Return what was stored so."""
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
    """Return what knows the classes of a function's annotation; it costs, and few need it."""
    try:
        return CallCodec(function)
    except (TypeError, ValueError):
        return None  # Some that are written in C have no signature.
