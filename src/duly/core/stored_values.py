"""Converts one value to stored text and back."""

# ruff: noqa: ANN401 - this module handles values of any type

from typing import Any

from duly.core.class_codecs import NO_CLASSES, AnnotationClasses
from duly.core.json_text import from_text, sha256, size_of, to_canonical_text, to_text
from duly.core.values import NOT_OURS, Encoder, Unstorable, decode
from duly.errors import PayloadError
from duly.limits import PAYLOAD_BYTES


def encode_value(value: object) -> str:
    """Return the text to store for a value that has no annotation."""
    return encode_one("value", value, NO_CLASSES, PAYLOAD_BYTES)


def fingerprint_of(value: object) -> str:
    """Return a hash that is equal for equal values that have no annotation."""
    try:
        text = to_canonical_text(Encoder(PAYLOAD_BYTES, canonical=True).encode(value, NO_CLASSES))
    except Unstorable as refusal:
        raise PayloadError(refusal.path("value"), refusal.problem) from refusal.__cause__
    return sha256(text)


def decode_value(text: str) -> Any:
    """Return the value that was passed to `encode_value`."""
    return decode_one("value", text, NO_CLASSES)


def encode_one(argument: str, value: object, names: AnnotationClasses, limit: int) -> str:
    """Return the text to store for a value of up to `limit` bytes."""
    try:
        text = to_text(Encoder(limit).encode(value, names))
    except Unstorable as refusal:
        raise PayloadError(refusal.path(argument), refusal.problem) from refusal.__cause__
    size = size_of(text)
    if size > limit:
        raise too_large(argument, size, limit)
    return text


def decode_one(argument: str, text: str, names: AnnotationClasses) -> Any:
    """Return the value of a stored text."""
    try:
        return decode(_parse_json(argument, text), names)
    except Unstorable as refusal:
        raise PayloadError(refusal.path(argument), refusal.problem) from refusal.__cause__


def _parse_json(argument: str, text: str) -> Any:
    try:
        return from_text(text)
    except ValueError as error:
        raise PayloadError(argument, f"{error}; {NOT_OURS}") from None


def too_large(argument: str, size: float, limit: int) -> PayloadError:
    """Return the error for a value that takes more bytes than are allowed."""
    problem = (
        f"increases the stored text to {size} bytes, but only {limit} are allowed; store the data "
        "elsewhere and pass its location"
    )
    return PayloadError(argument, problem)
