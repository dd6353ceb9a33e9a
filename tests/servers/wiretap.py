"""A proxy in front of PostgreSQL that notes each statement and each wait for an answer."""

import re
import selectors
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Self

_STARTUP = 196_608
"""The number of the protocol's version 3.0; other numbers ask for encryption or for a cancel."""
_DONE = frozenset(b"CIs")
"""What the server sends for each statement: done, empty, or as many rows as were asked for."""
_NOTIFIES = re.compile(r"\s*(SELECT (pg_catalog\.)?pg_notify\(|NOTIFY )", re.IGNORECASE)
_NOTIFIES_LATER = re.compile(r"\s*SELECT pg_catalog\.pg_notify\(.*'synchronous_commit', 'off'")
"""The notification that a thread of the store sends after a write."""


class Exchange(NamedTuple):
    """What clients sent to the server: statements, and how often they waited for it."""

    statements: list[str]
    round_trips: int


class Wiretap:
    """Carries the connections of clients that do not encrypt them, at a port of its own.

    A client waits after each Query and Sync, and after a Flush that follows other messages. So each
    of them is one round trip. A client that sent two of them before it read the first answer would
    be counted twice.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._lines: list[_Line] = []
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for end in (self._listening, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._listening.close()

    def begin(self) -> None:
        """Forget what was sent before."""
        for line in self._lines:
            line.begin()

    def exchange(self) -> Exchange:
        """Return what was sent since `begin`.

        Notifications that a thread of the store sends after a write are left out: no caller waits
        for them.
        """
        statements = [
            sql for line in self._lines for sql in line.statements if not _NOTIFIES_LATER.match(sql)
        ]
        return Exchange(statements, sum(line.round_trips for line in self._lines))

    def has_notified(self) -> bool:
        """Return whether some connection has sent a notification since `begin`."""
        statements = [sql for line in self._lines for sql in line.statements]
        return any(map(_NOTIFIES.match, statements))

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._ends += (client, server)
                self._lines.append(_Line())
                self._start(_carry, client, server, self._lines[-1])


def _carry(client: socket.socket, server: socket.socket, line: "_Line") -> None:
    with suppress(OSError), client, server, selectors.DefaultSelector() as ready:
        for source, target, note in (
            (client, server, line.client_sent),
            (server, client, line.server_sent),
        ):
            source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ready.register(source, selectors.EVENT_READ, (target, note))
        while True:
            for key, _ in ready.select():
                source, (target, note) = key.fileobj, key.data
                assert isinstance(source, socket.socket)
                piece = source.recv(1 << 16)
                if not piece:
                    return
                # Noted first, so that whoever has the answer finds it noted.
                note(piece)
                target.sendall(piece)


class _Line:
    """One connection: reads the messages of both sides."""

    def __init__(self) -> None:
        self._from_client = _Messages(has_startup=True)
        self._from_server = _Messages()
        self._prepared: dict[bytes, str] = {}
        self._portals: dict[bytes, bytes] = {}
        self._has_asked = True
        """Whether the server answers everything that was sent so far without a Flush."""
        self._expected: deque[tuple[bytes, str]] = deque()
        """What the server has still to answer: kind of the message, and SQL."""
        self.begin()

    def begin(self) -> None:
        """Forget what was sent before."""
        self.statements: list[str] = []
        self.round_trips = 0
        self._mentioned: list[str] = []
        """The SQL of all messages since the last round trip."""

    def client_sent(self, piece: bytes) -> None:
        """Note what the client asks for."""
        for kind, body in self._from_client.read(piece):
            if kind == b"P":
                name, sql, _ = body.split(b"\0", 2)
                self._prepared[name] = " ".join(sql.decode().split())
                self._mentioned.append(self._prepared[name])
            elif kind == b"B":
                portal, name, _ = body.split(b"\0", 2)
                self._portals[portal] = name
            elif kind == b"E":
                sql = self._prepared[self._portals[body.partition(b"\0")[0]]]
                self._expect(kind, sql)
            elif kind == b"Q":
                self._expect(kind, " ".join(body[:-1].decode().split()))
            elif kind == b"S":
                self._expected.append((kind, ""))
            # The driver sends a Flush after a Sync if the answers have not arrived yet.
            if kind in {b"", b"Q", b"S"} or (kind == b"H" and not self._has_asked):
                self.round_trips += not self._only_notifies_later()
                self._mentioned.clear()
            self._has_asked = kind in {b"", b"Q", b"S", b"H"}

    def server_sent(self, piece: bytes) -> None:
        """Note which statements the server has carried out or refused."""
        for kind, _ in self._from_server.read(piece):
            expected, sql = self._expected[0] if self._expected else (b"", "")
            if kind[0] in _DONE:
                self.statements.append(sql)
                if expected == b"E":
                    self._expected.popleft()
            elif kind == b"E" and expected in {b"E", b"Q"}:
                self.statements.append(f"{sql} -- refused")
            elif kind == b"Z":
                # After an error the server has left out the rest.
                while self._expected and self._expected.popleft()[0] == b"E":
                    pass

    def _only_notifies_later(self) -> bool:
        mentioned = self._mentioned
        return bool(mentioned) and all(map(_NOTIFIES_LATER.match, mentioned))

    def _expect(self, kind: bytes, sql: str) -> None:
        self._expected.append((kind, sql))
        self._mentioned.append(sql)


class _Messages:
    """Cuts a stream into messages: their kind and their body."""

    def __init__(self, *, has_startup: bool = False) -> None:
        self._rest = b""
        self._has_startup = has_startup

    def read(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Return the messages that are complete now."""
        rest, found = self._rest + piece, []
        while True:
            head = 0 if self._has_startup else 1
            if len(rest) < head + 4:
                break
            end = head + struct.unpack_from("!I", rest, head)[0]
            if len(rest) < end:
                break
            if self._has_startup:
                (version,) = struct.unpack_from("!I", rest, 4)
                self._has_startup = version != _STARTUP
            found.append((rest[:head], rest[head + 4 : end]))
            rest = rest[end:]
        self._rest = rest
        return found
