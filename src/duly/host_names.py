"""The host names that a server answers to. A name of another site may also lead to this machine."""

import re
from collections.abc import Collection

from duly.errors import BadOption

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s\[\]:@/?#\\]+)(?::\d{1,5})?")


def check_hosts(hosts: Collection[str] | None) -> frozenset[str] | None:
    """Return host names in the form used for comparison. None stays None."""
    if hosts is None:
        return None
    # A str is a collection of strings, too, and would match parts of itself.
    if isinstance(hosts, str) or not hosts or not all(isinstance(each, str) for each in hosts):
        raise BadOption(f"hosts must be host names, such as ['ops.example.com'], not {hosts!r:.80}")
    return frozenset(each.lower() for each in hosts)


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port. Empty if the header is malformed."""
    found = _HOST.fullmatch(header.lower())
    return found[1] if found else ""
