"""Which names always denote secrets, even if a task does not redact them."""

import re

REDACTED = "***"
_SECRET = re.compile(
    r"pass(word|wd|phrase)|secret|token$|(access|api|auth|device|push|refresh|session)_?tokens"
    r"|api_?key|authorization|credential|private_?key",
    re.IGNORECASE,
)
"""`max_tokens` and `token_count` are counts of tokens, not secrets."""


def is_secret(name: str) -> bool:
    """Return whether a value of that name must not be shown to people."""
    return _SECRET.search(name) is not None
