"""Reads from a request its key, its caller, and a fingerprint of its content."""

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
"""Clients without credentials may send only the name of a scheme, which many callers share."""

# A string of RFC 9651: visible ASCII and blanks, with quotes and backslashes escaped.
_QUOTED = re.compile(r'"((?:[\x20-\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_ESCAPED = re.compile(r"\\(.)")
# The unquoted form that some clients send. A comma would separate two keys, and a semicolon starts
# a parameter.
_BARE = re.compile(r'[^\x00-\x20\x7f-\U0010ffff",;\\]+')

# Enough for any real length, and too few to make the conversion slow.
_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Request:
    """A request without its body."""

    method: str
    path: str
    """The path that the application routes by, without the path at which the server mounts it."""
    query: str
    headers: Mapping[str, str]
    """The headers by lower-case name. The values of a repeated header are joined."""
    root_path: str = ""
    """The path at which the server mounts the application: `root_path`, or `SCRIPT_NAME`."""
    environ: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """The ASGI scope or WSGI environ. An outer middleware can store a proven identity in it."""


class MalformedKey(ValueError):
    """The header does not contain a valid key."""


def join_headers(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name. The values of a repeated header are joined as in HTTP."""
    headers: dict[str, str] = {}
    for given, value in pairs:
        name = given.lower()
        separator = "; " if name == "cookie" else ", "
        headers[name] = f"{headers[name]}{separator}{value}" if name in headers else value
    return headers


def parse_key(value: str) -> str:
    """Return the key in a header's value: a quoted string, or a bare token."""
    text = value.strip(" \t")
    # Every character may take two if escaped. A longer text cannot be a valid key.
    if len(text) <= 2 * HTTP_KEY_CHARACTERS + 2:
        if found := _QUOTED.fullmatch(text):
            text = _ESCAPED.sub(r"\1", found[1])
        elif not _BARE.fullmatch(text):
            raise MalformedKey("it is neither a string in double quotes nor a bare token")
    if not 1 <= len(text) <= HTTP_KEY_CHARACTERS:
        raise MalformedKey(f"it must have 1 to {HTTP_KEY_CHARACTERS} characters")
    return text


def parse_length(value: str) -> int | None:
    """Return the announced length of a body, or None if it is not a number."""
    return int(value) if value.isdecimal() and len(value) <= _DIGITS else None


def credentials(request: Request) -> str | None:
    """Return a hash of the headers that identify the caller, or None if none contains a secret.

    A cookie alone proves nothing, since many callers share most cookies. Together with a secret, it
    distinguishes callers who share that secret.
    """
    given = (request.headers.get(name, "").strip().lower() for name in SECRET_HEADERS)
    if not any(value and value not in _SCHEMES for value in given):
        return None
    named = (*SECRET_HEADERS, "cookie")
    return _digest(request.headers.get(name, "").encode() for name in named)


def scoped_key(key: str, scope: str) -> str:
    """Return the ledger key for one caller's key.

    The key is part of the hash, so the ledger does not reveal the caller, or which keys belong to
    the same caller.
    """
    return f"{_digest([key.encode(), scope.encode(errors='surrogatepass')])}:{key}"


def strip_root(path: str, root_path: str) -> str:
    """Return the path without the root path, which not every server puts before it."""
    root = root_path.rstrip("/")
    if f"{path}/".startswith(f"{root}/"):
        return path[len(root) :]
    return path


def quota_key(scope: str, window: int) -> str:
    """Return the ledger key that counts the responses of one caller."""
    return f"kept:{window}:{_digest([scope.encode(errors='surrogatepass')])}"


def fingerprint(request: Request, body: bytes) -> str:
    """Return a hash that is equal for requests with the same content.

    The host is part of the content, as of every target URI, and not of the scope. If it were in the
    scope, a retry that uses another host name would run a second time.
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
    """Return the requested host in one spelling."""
    host = request.headers.get("host", "").lower()
    return re.sub(r":(80|443)?$", "", host)


def _digest(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        # The length before each part prevents two parts from running together.
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()
