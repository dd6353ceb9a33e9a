"""Looks up host names without waiting for a name server that hangs.

Each lookup has a thread of its own. While a lookup is slow, the addresses from the previous lookup
are used, so that a worker whose connections were lost keeps its lease. The parameter `host` stays,
so that TLS still checks the certificate of the server against the name.
"""

import os
import socket
import threading
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

import psycopg

LOOKUP_SECONDS = 0.5
"""How long a lookup may take before the addresses of the previous one are used."""
PATIENCE_SECONDS = 2.0
"""How long to wait for a lookup if the previous addresses have no usable server."""


class HostResolver:
    """The addresses of host names, shared by all connections to a database."""

    def __init__(self) -> None:
        self._lookups: dict[str, _HostLookup] = {}

    def resolve(self, parameters: Mapping[str, Any]) -> "ResolvedHosts":
        """Look up the hosts in the parameters of a connection."""
        if _listed(parameters, "hostaddr"):
            return ResolvedHosts(parameters, {})
        names = filter(_is_name, _listed(parameters, "host"))
        try:
            return ResolvedHosts(parameters, {name: self._start(name) for name in names})
        except RuntimeError:  # No thread can be started, because the interpreter is shutting down.
            return ResolvedHosts(parameters, {})

    def _start(self, host: str) -> "_HostLookup":
        """Start a lookup, unless one is in progress."""
        last = self._lookups.get(host)
        # Threads do not survive a fork, so a forked process has no lookup in progress.
        if last is None or not last.is_alive():
            last = _HostLookup(host, last)
            last.start()
            self._lookups[host] = last
        return last


class _HostLookup(threading.Thread):
    def __init__(self, host: str, last: "_HostLookup | None") -> None:
        super().__init__(name="duly-lookup", daemon=True)
        self._host = host
        self.addresses: list[str] = [] if last is None else last.addresses
        """The addresses found. Until this lookup succeeds, those of the previous lookup."""
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            answers = socket.getaddrinfo(
                self._host, None, proto=socket.IPPROTO_TCP, type=socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as error:
            self.error = error
        else:
            self.addresses = list(dict.fromkeys(str(answer[4][0]) for answer in answers))


class ResolvedHosts:
    """The parameters of a connection, with the addresses of its hosts."""

    def __init__(self, given: Mapping[str, Any], lookups: Mapping[str, _HostLookup]) -> None:
        self._given = given
        self._lookups = lookups
        for lookup in lookups.values():
            lookup.join(LOOKUP_SECONDS if lookup.addresses else None)
        self.parameters = self._with_addresses()

    def newer(self) -> Mapping[str, Any] | None:
        """Wait for lookups in progress. Return the parameters if the addresses changed."""
        for lookup in self._lookups.values():
            lookup.join(PATIENCE_SECONDS)
        found = self._with_addresses()
        return None if found == self.parameters else found

    def _with_addresses(self) -> Mapping[str, Any]:
        hosts = _listed(self._given, "host")
        ports = _listed(self._given, "port") or [""]
        if len(ports) == 1:
            ports *= len(hosts)
        if not self._lookups or len(ports) != len(hosts):
            return self._given
        places = [
            (host, address, port)
            for host, port in zip(hosts, ports, strict=True)
            for address in (self._lookups[host].addresses if host in self._lookups else [""])
        ]
        if not places:
            errors = (f"{host!r}: {lookup.error}" for host, lookup in self._lookups.items())
            raise psycopg.OperationalError(f"failed to resolve host {', '.join(errors)}")
        host, address, port = (",".join(column) for column in zip(*places, strict=True))
        return {**self._given, "host": host, "hostaddr": address, "port": port}


def _listed(parameters: Mapping[str, Any], name: str) -> list[str]:
    """Return the values of a parameter, from the address of the database or the environment."""
    text = str(parameters.get(name) or os.environ.get(f"PG{name.upper()}") or "")
    return text.split(",") if text else []


def _is_name(host: str) -> bool:
    """Return whether a host must be looked up, because it is neither an address nor a path."""
    if not host or host.startswith(("/", "@")):
        return False
    try:
        ip_address(host)
    except ValueError:
        return True
    return False
