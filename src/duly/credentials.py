"""Rules for names and passwords: how strong a password must be, and how often a client may try."""

import hashlib
import ipaddress
from asyncio import Semaphore, sleep
from base64 import b64decode
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from duly.clock import monotonic
from duly.errors import BadOption
from duly.limits import (
    LOGIN_CLIENTS,
    LOGIN_DELAY_SECONDS,
    LOGIN_FAILURES,
    LOGIN_FAILURES_OF_ALL,
    LOGIN_SECONDS,
    PASSWORD_CHARACTERS,
    PASSWORD_LENGTH,
)

_SUBSCRIBER_BITS = 64
"""A provider gives each subscriber this many bits of an IPv6 address, or more."""


def check_password(name: str, password: str) -> None:
    """Raise BadOption for a password that could be guessed within the tries that a client has."""
    if len(password) < PASSWORD_LENGTH or len(set(password)) < PASSWORD_CHARACTERS:
        # The password itself is not shown.
        raise BadOption(
            f"the password of {name!r} is too easy to guess: use at least {PASSWORD_LENGTH} "
            f"characters, {PASSWORD_CHARACTERS} of them different"
        )


def read_basic(header: str) -> tuple[str, str] | None:
    """Return the name and the password of a Basic `Authorization` header, or None."""
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return None
    return (name, password) if colon else None


class TooManyTries(Exception):
    """A client sent wrong credentials faster than people type them."""


class LoginLimit:
    """Counts wrong tries by client address, by name, and in total.

    An address with too many wrong tries is refused for a while. Too many wrong tries for a name, or
    in total, only delay every answer. If they refused anyone, strangers could lock out users who
    know the password.
    """

    def __init__(self) -> None:
        self._by_address = _Failures(LOGIN_FAILURES)
        self._by_name = _Failures(LOGIN_FAILURES)
        self._in_all = _Failures(LOGIN_FAILURES_OF_ALL)
        self._slots = Semaphore(LOGIN_FAILURES)

    async def wait(self, address: str, name: str | None = None) -> None:
        """Return when credentials may be compared. Raise TooManyTries if they may not.

        A token has no name.
        """
        client = client_key(address)
        self._refuse(client)
        is_name_tried = name is not None and self._by_name.are_too_many(_digest(name))
        if is_name_tried or self._in_all.are_too_many(b""):
            await sleep(LOGIN_DELAY_SECONDS)
            self._refuse(client)  # Other requests from this address may have failed meanwhile.

    @asynccontextmanager
    async def slot(self, address: str) -> AsyncIterator[None]:
        """Wait for one of a few slots, for a comparison that takes time.

        Without slots, all guesses that a client sends at once would be compared before one has
        failed.
        """
        async with self._slots:
            self._refuse(client_key(address))
            yield

    def note_failure(self, address: str, name: str | None = None) -> None:
        """Count a wrong try."""
        self._by_address.add(client_key(address))
        if name is not None:
            self._by_name.add(_digest(name))
        self._in_all.add(b"")

    def sizes(self) -> tuple[int, ...]:
        """Return how many addresses and how many names are remembered."""
        return len(self._by_address), len(self._by_name)

    def _refuse(self, client: bytes) -> None:
        if self._by_address.are_too_many(client):
            raise TooManyTries


class _Failures:
    """The times of the latest failures of each key, for a bounded number of keys."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._failed_at: OrderedDict[bytes, deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._failed_at)

    def are_too_many(self, key: bytes) -> bool:
        failed_at = self._failed_at.get(key)
        if failed_at is None or len(failed_at) < self._limit:
            return False
        return monotonic() - failed_at[0] < LOGIN_SECONDS

    def add(self, key: bytes) -> None:
        self._failed_at.setdefault(key, deque(maxlen=self._limit)).append(monotonic())
        self._failed_at.move_to_end(key)
        if len(self._failed_at) > LOGIN_CLIENTS:
            self._failed_at.popitem(last=False)


def client_key(address: str) -> bytes:
    """Return a key that all addresses of one client share."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return _digest(address)
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return found.packed[: _SUBSCRIBER_BITS // 8]
        found = found.ipv4_mapped
    return found.packed


def _digest(text: str) -> bytes:
    # A digest has a fixed length, however long the client's name is.
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
