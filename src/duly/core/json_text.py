"""Converts JSON data to text and back without the set-up work of the standard library's calls.

That set-up takes longer than encoding the arguments of most calls.
"""

# ruff: noqa: ANN401 - JSON data may be of any type

import json
import math
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring
from json.scanner import make_scanner
from typing import Any, NoReturn

_encoder = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
)
_chunks: Callable[[Any, int], Iterable[str]] | None = None
if make_encoder := getattr(json.encoder, "c_make_encoder", None):
    sort_keys = skip_keys = allow_nan = False
    _chunks = make_encoder(
        None, _encoder.default, encode_basestring, None, ":", ",", sort_keys, skip_keys, allow_nan
    )

to_canonical_text = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), sort_keys=True
).encode


def to_text(data: Any) -> str:
    """Return JSON data as text in one fixed format."""
    return _encoder.encode(data) if _chunks is None else "".join(_chunks(data, 0))


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(constant)


# The function that `raw_decode` calls. The standard library's annotation gives another type.
_scan: Callable[[str, int], tuple[Any, int]] = make_scanner(
    json.JSONDecoder(parse_constant=_refuse_constant)  # type: ignore[arg-type]
)


def from_text(text: str) -> Any:
    """Return the data of a JSON text. Raise ValueError if it is not JSON or nested too deeply."""
    try:
        data, end = _scan(text, 0)
    except (StopIteration, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"not JSON ({type(error).__name__})") from None
    if end != len(text):
        raise ValueError("more text after the end of the JSON")
    return data


def parsed(text: str | None) -> Any:
    """Return the data of stored JSON. Return None if it is missing or cannot be written again."""
    try:
        data = None if text is None else from_text(text)
        return data if size_of(to_text(data)) < math.inf else None
    except (ValueError, RecursionError):
        return None


def size_of(text: str) -> float:
    """Return the size of a text in UTF-8 bytes. Infinite if the text cannot be encoded."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return math.inf


def sha256(text: str) -> str:
    """Return the SHA-256 hash of a text."""
    import hashlib  # noqa: PLC0415 - loads OpenSSL, which only calls with a key need

    return hashlib.sha256(text.encode()).hexdigest()
