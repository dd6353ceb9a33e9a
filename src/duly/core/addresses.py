"""Removes passwords from addresses of databases, even malformed ones, and from texts about them."""

import re
from collections.abc import Mapping
from urllib.parse import quote, unquote

from duly.core.secret_names import REDACTED, is_secret

_DRIVER = re.compile(r"^(sqlite|postgres(?:ql)?)\+\w+(?=://)")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PARAMETER = re.compile(r"[?&]([^=&?]*)=")
_PLACE = r"(\[[^\[\]@]*\]|[^:\[\]/?]*)(:\d*)?"
_PLACES = re.compile(rf"{_PLACE}(,{_PLACE})*([/?].*)?", re.DOTALL)
"""Hosts with their ports, then a path or a query."""


def shown_address(url: str) -> str:
    """Return an address without its password, and without anything after a secret parameter.

    A parser may end a password with a raw `/`, `?` or `@` too early. So everything that could
    belong to the password is omitted.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        return REDACTED  # Without a scheme, the position of the password is unknown.
    return f"{scheme}://{_without_login(_without_parameters(rest))}"


def has_password(url: str) -> bool:
    """Return whether an address contains a password, or may contain one."""
    return shown_address(url) != url


def without_driver(url: str) -> str:
    """Return an address without the driver that SQLAlchemy's form of it names.

    `postgresql+psycopg://…` is `postgresql://…`, since duly uses its own driver.
    """
    return _DRIVER.sub(r"\1", url)


def shown_scheme(url: str) -> str:
    """Return the quoted scheme of an address, for an error message that refuses the address."""
    scheme, separator, _ = url.partition("://")
    return repr(scheme) if separator and _SCHEME.fullmatch(scheme) else "the address"


class ConnectionSecrets:
    """The passwords among the parameters of a connection."""

    def __init__(self, parameters: Mapping[str, object]) -> None:
        found = [str(parameters[name]) for name in parameters if _is_secret_parameter(name)]
        self._forms = [form for text in found for form in (text, quote(text, safe="")) if form]

    def masked(self, text: object) -> str:
        """Return a text, such as an error of the driver, without these passwords."""
        shown = str(text)
        for form in self._forms:
            shown = shown.replace(form, REDACTED)
        return shown


def _is_secret_parameter(name: str) -> bool:
    """Return whether a connection parameter is a secret, such as `sslpassword`."""
    return is_secret(name) or name.startswith("scram_")


def _without_parameters(rest: str) -> str:
    """Return the text up to the name of the first secret parameter."""
    for found in _PARAMETER.finditer(rest):
        if _is_secret_parameter(unquote(found[1])):
            return rest[: found.end()] + REDACTED
    return rest


def _without_login(rest: str) -> str:
    login, at, place = rest.rpartition("@")
    if at:
        user = re.split("[:/?#]", login, maxsplit=1)[0]
        return user + ("" if user == login else f":{REDACTED}") + at + place
    if _PLACES.fullmatch(rest):
        return rest
    # The port is not a number, so this is probably a login whose @ is missing.
    return f"{rest.partition(':')[0]}:{REDACTED}"
