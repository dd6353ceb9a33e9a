"""Redacts the secrets of a call in its arguments, its result, and texts about its run."""

# ruff: noqa: ANN401 - this module handles values of any type

import json
from binascii import Error, a2b_base64
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any
from urllib.parse import quote

from duly.core.secret_names import REDACTED, is_secret

TextRedactor = Callable[[str], str]
"""A function that returns a text without the secrets in it."""

_SHORTEST = 4
"""A shorter secret occurs by chance in too many texts, so it is not searched for."""
_NAMED_TAGS = ("$dataclass", "$model", "$enum")


class Redaction:
    """The names whose values are redacted at any depth. Names of secrets always are."""

    def __init__(self, names: Collection[str] = ()) -> None:
        self._names = frozenset(names)

    def redacts(self, name: str) -> bool:
        """Return whether values of this name are redacted."""
        return name in self._names or is_secret(name)

    def data(self, data: Any, redact: TextRedactor = str) -> Any:
        """Return JSON data with the values of such names and the secrets in texts redacted."""
        match data:
            case dict():
                return {
                    redact(name): REDACTED if self.redacts(name) else self.data(value, redact)
                    for name, value in data.items()
                }
            case list():
                return [self.data(value, redact) for value in data]
            case str():
                return redact(data)
            case int() | float() if type(data) is not bool and redact(text := str(data)) != text:
                return REDACTED
            case _:
                return data

    def text(self, text: str, redact: TextRedactor = str) -> str:
        """Return stored JSON with its secrets redacted, or REDACTED if the text is not JSON."""
        try:
            return json.dumps(self.data(json.loads(text), redact), ensure_ascii=False)
        except (ValueError, RecursionError):
            return REDACTED

    def secrets(self, data: Any, *, hidden: bool = False) -> Iterator[str]:
        """Yield the texts that are redacted in JSON data, or all of them if it is `hidden`."""
        match data:
            case {"$bytes": str() as stored} if hidden:
                yield stored
                yield from _texts_of_bytes(stored)
            case dict():
                for name, value in data.items():
                    if hidden and not name.isidentifier() and not name.startswith("$"):
                        yield name
                    is_class = name in _NAMED_TAGS and isinstance(value, list)
                    yield from self.secrets(
                        value[1:] if is_class else value, hidden=hidden or self.redacts(name)
                    )
            case list():
                for value in data:
                    yield from self.secrets(value, hidden=hidden)
            case str() if hidden:
                yield data
            case int() | float() if hidden and type(data) is not bool:
                yield str(data)


def text_redactor(secrets: Iterable[str]) -> TextRedactor:
    """Return a function that replaces secrets in a text, including their quoted and escaped forms.

    Its time is proportional to the length of the text, however many secrets there are, because
    secrets are looked up by their first characters.
    """
    forms = {form for secret in secrets for form in _forms(secret) if len(form) >= _SHORTEST}
    lengths: dict[str, set[int]] = {}
    for form in forms:
        lengths.setdefault(form[:_SHORTEST], set()).add(len(form))
    longest_first = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    def redact(text: str) -> str:
        if not forms:
            return text
        shown: list[str] = []
        shown_to = hidden_to = 0
        for at in range(len(text) - _SHORTEST + 1):
            for length in longest_first.get(text[at : at + _SHORTEST], ()):
                if text[at : at + length] in forms:
                    if at >= hidden_to:
                        shown += (text[shown_to:at], REDACTED)
                    # Secrets may overlap. Text that belongs to any of them is hidden.
                    shown_to = hidden_to = max(hidden_to, at + length)
                    break
        return "".join((*shown, text[shown_to:]))

    return redact


def _forms(secret: str) -> Iterator[str]:
    yield from (secret, repr(secret)[1:-1], quote(secret, safe=""))
    yield from (json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    # The traceback of an exception group indents the lines of a message.
    yield from secret.splitlines()


def _texts_of_bytes(stored: str) -> Iterator[str]:
    try:
        found = a2b_base64(stored)
    except (Error, ValueError):
        return
    yield repr(found)[2:-1]
    yield found.decode(errors="ignore")
