"""Which names are those of secrets, whatever a task says of its parameters."""

import re

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
