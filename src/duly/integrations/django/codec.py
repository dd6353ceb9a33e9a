"""Encodes arguments as Django keeps them: JSON, positional and named as they were given."""

from typing import Any

from duly.core.class_codecs import NO_CLASSES
from duly.core.json_text import to_text
from duly.core.payload import CallCodec
from duly.core.values import Encoder
from duly.limits import PAYLOAD_BYTES


class PositionKeepingCodec(CallCodec):
    """Keeps positional and named arguments separate, since task results show them separately."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the text to store for a call with these JSON arguments."""
        super().encode(args, kwargs)  # Rejects a call that does not match the function.
        encoder = Encoder(PAYLOAD_BYTES)
        positional = [encoder.encode(value, NO_CLASSES) for value in args]
        named = {name: encoder.encode(value, NO_CLASSES) for name, value in kwargs.items()}
        return to_text([positional, named])
