"""Keys that are equal for equal calls, and only for those."""

from collections.abc import Callable
from functools import lru_cache
from inspect import Signature
from typing import Any

from duly.core.key import check_key
from duly.core.payload import CallCodec
from duly.errors import BadOption
from duly.limits import GUARD_KEY_BYTES

_SEPARATOR = "/"


def make_key(
    task_name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    signature: Callable[..., Any] | Signature,
) -> str:
    """Return the key of a call: the task's name and a SHA-256 of its arguments.

    Arguments are bound to the signature, with defaults, and keep their types: `f(1)`, `f(x=1)` and
    `f(1, y=default)` give one key, `f(1)` and `f("1")` give two.
    """
    return key_of(task_name, _codec_for(signature), args, kwargs)


def key_of(task_name: str, codec: CallCodec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the key of a call of a function, given its codec."""
    return f"{check_key(task_name)}:{codec.fingerprint(args, kwargs)}"


def check_namespace(namespace: str) -> str:
    """Return the namespace, or raise BadOption."""
    if namespace:
        check_key(namespace, "namespace")
    if _SEPARATOR in namespace:
        raise BadOption(f"namespace {namespace!r} must not contain {_SEPARATOR!r}")
    return namespace


def stored_key(namespace: str, key: str) -> str:
    """Return the stored form of a key. Keys of different namespaces never collide."""
    return f"{namespace}{_SEPARATOR}{check_key(key, limit=GUARD_KEY_BYTES)}"


_codec_for = lru_cache(maxsize=256)(CallCodec)
