"""The address of the database, and a form of it for display that never contains its password."""

from copy import copy
from typing import Any, Self
from urllib.parse import quote

import psycopg
from psycopg.conninfo import conninfo_to_dict

from duly.core.addresses import ConnectionSecrets, shown_address
from duly.errors import StoreRefused
from duly.store.postgres.host_lookup import HostResolver

_UNREADABLE = (
    "the address of the database is not valid; write it as "
    "postgresql://user:password@host:port/database, with %-codes for special characters"
)
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 5,
    "application_name": "duly",
    # A peer that vanished without closing is detected within half a minute, also while idle.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
}


class Epoch:
    """The sessions that this process may still use. After a failover all older ones end."""

    def __init__(self) -> None:
        self.number = 0

    def advance(self) -> None:
        """End every session that is open now, each before its next statement."""
        self.number += 1


class Address:
    """The parameters of a connection, read from a URL or a connection string."""

    def __init__(self, url: str) -> None:
        self.url = url
        try:
            given = conninfo_to_dict(url)
        except psycopg.Error:
            # The driver's message repeats the address, including the password.
            raise StoreRefused(_UNREADABLE) from None
        if _is_misread(url, given):
            raise StoreRefused(_UNREADABLE)
        self.secrets = ConnectionSecrets(given)
        if "," in str(given.get("host", "")):
            # If there are several servers, only the primary accepts writes.
            given.setdefault("target_session_attrs", "read-write")
        self.parameters: dict[str, Any] = _DEFAULTS | given | {"client_encoding": "UTF8"}
        self.shown_url = shown_address(_url_of(given))
        self.epoch = Epoch()
        """Shared by all copies of this address, as is the next attribute."""
        self.hosts = HostResolver()

    def with_parameters(self, **parameters: object) -> Self:
        """Return the same address with some parameters of the connection replaced."""
        other = copy(self)
        other.parameters = self.parameters | parameters
        return other


def _is_misread(url: str, given: dict[str, Any]) -> bool:
    """Return whether parts of a password may have been read as a host, a port or a database.

    The driver reads an unescaped `/` or `@` in a password as the end of the login.
    """
    place, _, path = url.partition("?")[0].partition("://")[2].partition("/")
    ports = str(given.get("port") or "").split(",")
    has_port = all(not port or (port.isascii() and port.isdecimal()) for port in ports)
    return not has_port or place.count("@") > 1 or "@" in path


def _url_of(given: dict[str, Any]) -> str:
    """Return the URL of a server, its user and its database."""
    user, password = (quote(str(given.get(name) or ""), safe="") for name in ("user", "password"))
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    hosts = str(given.get("host") or given.get("hostaddr") or "").split(",")
    ports = str(given.get("port") or "").split(",")
    if len(ports) < len(hosts):
        ports = [ports[0]] * len(hosts)
    hosts = [f"[{host}]" if ":" in host else host for host in hosts]
    places = [f"{host}:{port}" if port else host for host, port in zip(hosts, ports, strict=False)]
    return f"postgresql://{login}{','.join(places)}/{given.get('dbname') or ''}"
