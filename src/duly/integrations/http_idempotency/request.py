"""What a request says about itself: its key, whose it is, and what the key stands for."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from duly.limits import HTTP_KEY_CHARACTERS

KEY_HEADER = "idempotency-key"
SECRET_HEADERS = ("authorization", "x-api-key")
"""Headers whose value only the caller and the application know."""
_SCHEMES = frozenset({"basic", "bearer", "digest", "negotiate", "token"})
"""Clients without credentials send the name of a scheme alone: it is equal for many callers."""

# A string of RFC 9651: visible ASCII and blanks, with quotes and backslashes escaped.
_QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(r"\\(.)")
# What clients send that know of no quotes. A comma would be two keys, a semicolon a parameter.
_BARE = re.compile(r'[^\x00-\x20\x7f-\U0010ffff",;\\]+')

# More bytes than anybody has, and far from where the conversion becomes slow.
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body."""

    method: str
    path: str
    """The path that the application routes by: without the path at which the server mounts it."""
    query: str
    headers: Mapping[str, str]
    """By lower-case name; the values of a repeated one are joined."""
    root_path: str = ""
    """The path at which the server mounts the application: `root_path`, or `SCRIPT_NAME`."""
    environ: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The scope of ASGI, or the environ of WSGI. An outer middleware puts there what it proved."""


class MalformedKey(ValueError):
    """The header is there, and is no key."""


def join_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name, the values of a repeated one joined as HTTP joins them."""
    headers: dict[str, str] = {}
    for given, value in pairs:
        name = given.lower()
        separator = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{separator}{value}" if name in headers else value
    return headers


def parse_key(value: str) -> str:
    """Return the key that a header's value stands for: a quoted string, or a bare token."""
    text = value.strip(" \t")
    # Escaped, every character may take two; beyond that nothing needs a closer look.
    if len(text) <= 2 * HTTP_KEY_CHARACTERS + 2:
        if found := _QUOTED.fullmatch(text):
            text = _ESCAPED.sub(r"\1", found[1])
        elif not _BARE.fullmatch(text):
            raise MalformedKey("it is neither a string in double quotes nor a bare token")
    if not 1 <= len(text) <= HTTP_KEY_CHARACTERS:
        raise MalformedKey(f"it must have 1 to {HTTP_KEY_CHARACTERS} characters")
    return text


def parse_length(value: str) -> int | None:
    """Return how long a body is said to be, or None if no number says so."""
    return int(value) if value.isdecimal() and len(value) <= _DIGITS else None


def credentials(request: Request) -> str | None:
    """Return a hash of the headers that name the caller; None if none of them holds a secret.

    A cookie alone proves nothing, since most cookies are equal for many callers. Beside a secret it
    still tells apart callers who share that secret.
    """
    given = (request.headers.get(name, "").strip().lower() for name in SECRET_HEADERS)
    if not any(value and value not in _SCHEMES for value in given):
        return None
    named = (*SECRET_HEADERS, "cookie")
    return _digest(request.headers.get(name, "").encode() for name in named)


def scoped_key(key: str, scope: str) -> str:
    """Return the key in the ledger of one caller's key.

    The key is part of the hash, so that neither the caller nor which keys are of one caller shows.
    """
    return f"{_digest([key.encode(), scope.encode(errors='surrogatepass')])}:{key}"


def strip_root(path: str, root_path: str) -> str:
    """Return the path without the root path, which not every server puts before it."""
    root = root_path.rstrip("/")
    if f"{path}/".startswith(f"{root}/"):
        return path[len(root) :]
    return path


def quota_key(scope: str, window: int) -> str:
    """Return the key in the ledger that counts what one caller keeps."""
    return f"kept:{window}:{_digest([scope.encode(errors='surrogatepass')])}"


def fingerprint(request: Request, body: bytes) -> str:
    """Return a hash that is equal for requests that ask for the same.

    The host is a part of what is asked, as of every target URI, and not of who asks: were it in the
    scope, a retry that reaches us by another name would be carried out a second time.
    """
    said = (
        request.method,
        _host(request),
        request.root_path + request.path,
        request.query,
        request.headers.get("content-type", ""),
    )
    return _digest([*(part.encode(errors="surrogatepass") for part in said), body])


def _host(request: Request) -> str:
    """Return the host that was asked, in one spelling."""
    host = request.headers.get("host", "").lower()
    return re.sub(r":(80|443)?$", "", host)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # With its length before it no part can run into the next.
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
