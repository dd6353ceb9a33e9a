"""Shows the addresses of databases without their passwords, also where they are malformed."""

import re
from urllib.parse import unquote

from duly.core.secret_names import REDACTED, is_secret

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PARAMETER = re.compile(r"[?&]([^=&?]*)=")
_PLACE = r"(\[[^\[\]@]*\]|[^:\[\]/?]*)(:\d*)?"
_PLACES = re.compile(rf"{_PLACE}(,{_PLACE})*([/?].*)?", re.DOTALL)
"""Hosts with their ports, then a path or a query."""


def shown_address(url: str) -> str:
    """Return an address as it may be shown: without its password and what follows one.

    A password with a raw `/`, `?` or `@` does not end where a parser takes it to end. So all that
    could belong to a password is left out.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return REDACTED  # Nothing tells which part of such a text is a password.
    return f"{scheme}://{_without_login(_without_parameters(rest))}"


def shown_scheme(url: str) -> str:
    """Return the quoted scheme of an address for a message that refuses the address."""
    scheme, separator, _ = url.partition("://")
    return repr(scheme) if separator and _SCHEME.fullmatch(scheme) else "the address"


def is_secret_parameter(name: str) -> bool:
    """Return whether a parameter of a connection is a secret, such as `sslpassword`."""
    return is_secret(name) or name.startswith("scram_")


def _without_parameters(rest: str) -> str:
    """Cut the query after the name of the first secret parameter."""
    for found in _PARAMETER.finditer(rest):
        if is_secret_parameter(unquote(found[1])):
            return rest[: found.end()] + REDACTED
    return rest


def _without_login(rest: str) -> str:
    login, at, place = rest.rpartition("@")
    if at:
        user = re.split("[:/?#]", login, maxsplit=1)[0]
        return user + ("" if user == login else f":{REDACTED}") + at + place
    if _PLACES.fullmatch(rest):
        return rest
    # What should be a port is none: a login whose @ is missing.
    return f"{rest.partition(':')[0]}:{REDACTED}"
