"""Arguments as Django has them: JSON, by position and by name just as they were given."""

from typing import Any

from duly.core.class_codecs import NO_CLASSES
from duly.core.json_text import to_text
from duly.core.payload import CallCodec
from duly.core.values import Encoder
from duly.limits import PAYLOAD_BYTES


class PositionKeepingCodec(CallCodec):
    """Keeps apart what was given by position and what by name, since results show it so."""

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the text to store for a call with these arguments, which are of JSON."""
        super().encode(args, kwargs)  # Refuses what does not fit.
        encoder = Encoder(PAYLOAD_BYTES)
        positional = [encoder.encode(value, NO_CLASSES) for value in args]
        named = {name: encoder.encode(value, NO_CLASSES) for name, value in kwargs.items()}
        return to_text([positional, named])
