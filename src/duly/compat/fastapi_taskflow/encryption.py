"""Encrypts arguments and results as Fernet tokens, which can be read only with the key."""

# ruff: noqa: ANN401 - values of any type are what this module is about

import hmac
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from duly.core.codec import Codec
from duly.core.json_text import parsed
from duly.core.payload import REDACTED
from duly.core.redaction import Redaction, text_redactor
from duly.errors import BadOption, PayloadError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

_TOKEN = "$encrypted"  # noqa: S105 - marks a token, is not one


def fernet_of(key: str | bytes) -> "Fernet":
    """Return the Fernet for a key.

    Raise BadOption if the key is invalid or no package is installed.
    """
    try:
        from cryptography.fernet import Fernet  # noqa: PLC0415 - from an extra
    except ImportError as error:
        raise BadOption(
            "encrypt_args_key needs the package cryptography: pip install 'duly[crypto]'"
        ) from error
    try:
        return Fernet(key)
    except (TypeError, ValueError) as error:
        raise BadOption(
            "encrypt_args_key must be a key from cryptography.fernet.Fernet.generate_key()"
        ) from error


class EncryptedCodec:
    """Wraps the codec of a function and stores its output as one token."""

    def __init__(self, inner: Codec, fernet: "Fernet", key: str | bytes) -> None:
        self._inner = inner
        self._fernet = fernet
        self._key = key.encode() if isinstance(key, str) else key
        self._nothing = _text_of_nothing(inner)

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the token of a call. A call without arguments is stored as it is."""
        text = self._inner.encode(args, kwargs)
        # Two tokens of one text differ, and a schedule must not look changed at every start.
        return text if text == self._nothing else self.seal(text)

    def fingerprint(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return a hash that can be compared with that of a guess only with the key."""
        plain = self._inner.fingerprint(args, kwargs)
        return hmac.new(self._key, plain.encode(), "sha256").hexdigest()

    def decode(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments. Those stored before a key was set are plain."""
        return self._inner.decode(self._opened("stored arguments", text))

    def from_json(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the values of JSON arguments."""
        return self._inner.from_json(args, kwargs)

    def redacted(self, text: str) -> str:
        """Return the arguments without secrets."""
        return json.dumps({_TOKEN: REDACTED}) if token_of(text) else self._inner.redacted(text)

    def redacted_result(self, text: str | None, arguments: str) -> str | None:
        """Return a result without secrets."""
        if text is None or token_of(text) is None:
            return self._inner.redacted_result(text, arguments)
        return json.dumps({_TOKEN: REDACTED})

    def redacted_text(self, text: str, arguments: str) -> str:
        """Return a text about a call with all of the call's arguments removed: all are secret."""
        try:
            call = json.loads(self._opened("stored arguments", arguments))
        except (PayloadError, ValueError, RecursionError):
            return text
        return text_redactor(Redaction().secrets(call, hidden=True))(text)

    def encode_result(self, value: object) -> str | None:
        """Return the token of a result."""
        text = self._inner.encode_result(value)
        return None if text is None else self.seal(text)

    def decode_result(self, text: str | None) -> Any:
        """Return a result."""
        if text is not None:
            text = self._opened("return value", text)
        return self._inner.decode_result(text)

    def seal(self, text: str) -> str:
        """Return the token of a text."""
        return json.dumps({_TOKEN: self._fernet.encrypt(text.encode()).decode()})

    def unseal(self, text: str) -> str:
        """Return the text of a token. A text stored before a key was set is plain."""
        return self._opened("the result of a step", text)

    def _opened(self, what: str, text: str) -> str:
        from cryptography.fernet import InvalidToken  # noqa: PLC0415 - from an extra

        token = token_of(text)
        if token is None:
            return text
        try:
            return self._fernet.decrypt(token.encode()).decode()
        except InvalidToken:
            raise PayloadError(
                what,
                "it was encrypted with another key than the current encrypt_args_key, or it was "
                "changed; retry the run after you restore its key",
            ) from None


def _text_of_nothing(inner: Codec) -> str | None:
    """Return the stored form of a call without arguments, or None if arguments are required."""
    try:
        return inner.encode((), {})
    except TypeError:
        return None


def token_of(text: str) -> str | None:
    """Return the token in stored arguments, or None if they are plain."""
    if not text.startswith(f'{{"{_TOKEN}"'):
        return None
    data = parsed(text)
    found = data.get(_TOKEN) if isinstance(data, dict) else None
    return found if isinstance(found, str) else None
