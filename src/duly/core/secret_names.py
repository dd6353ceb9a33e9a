"""Which names are those of secrets, whatever a task says of its parameters."""

import json
import re
from typing import Any

REDACTED = "***"
_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token$|(access|api|auth|device|push|refresh|session)_?tokens"
    r"|api_?key|authorization|credential|private_?key",
    re.IGNORECASE,
)
"""`max_tokens` and `token_count` are numbers of words, and no secrets."""


def is_secret(name: str) -> bool:
    """Say whether something of that name is not for people to see."""
    return _SECRET.search(name) is not None


def without_secrets(data: Any) -> Any:  # noqa: ANN401 - any JSON value
    """Replace what is named like a password or a token."""
    match data:
        case dict():
            return {
                name: REDACTED if is_secret(name) else without_secrets(value)
                for name, value in data.items()
            }
        case list():
            return [without_secrets(value) for value in data]
        case _:
            return data


def text_without_secrets(text: str) -> str:
    """Replace what is so named in stored text; text that is no JSON is returned as it is."""
    try:
        return json.dumps(without_secrets(json.loads(text)), ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
