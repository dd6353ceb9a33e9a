"""A proxy that cuts the connection between a client and a server at a chosen moment."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import pytest

ANSWER_SECONDS = 2.0
ENOUGH = 60

COMMITTED = b"C\0\0\0\x0bCOMMIT\0"
"""The answer of a server that has committed a transaction."""

_FLUSH = b"H\0\0\0\4"
"""The message of the protocol that asks for the answers to earlier messages."""

UNSEEN = "unseen"
UNANSWERED = "unanswered"
HALF_OPEN = "half open"
"""The server does not notice and keeps the transaction, with its locks, for as long as it likes."""


def nothing() -> None:
    """Do nothing."""


class CuttingProxy:
    """Stands between a client and a server and cuts one connection, once, when told to."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._mutex = threading.Lock()
        self._left = 0
        self._how = UNSEEN
        self._hanging: list[socket.socket] = []
        self._lost_answer: bytes | None = None
        self.struck = False
        self.is_down = False
        self.before_connecting: Callable[[], None] = nothing
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Take no more connections."""
        hang_up(self._listening, *self._hanging)
        self._thread.join()
        self._listening.close()

    def cut(self, nth: int, how: str) -> None:
        """Cut at the n-th piece that some client sends from now on."""
        with self._mutex:
            self._left, self._how, self.struck = nth, how, False

    def cut_next_answer(self, containing: bytes = b"") -> None:
        """Cut when some server answers, with these bytes; it has then done what it was asked."""
        self._lost_answer = containing

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            if self.is_down:
                client.close()
                continue
            self.before_connecting()
            server = socket.create_connection(self._server)
            for side in (client, server):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(client, server), daemon=True).start()

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        ends = (client, server, threading.Event(), threading.Event())
        answering = threading.Thread(target=self._to_client, args=ends, daemon=True)
        answering.start()
        self._to_server(*ends)
        answering.join()
        # Not before: the number of a socket that is closed is soon another connection's, and a
        # thread that still reads from it would read there.
        for side in (client, server):
            side.close()

    def _to_server(
        self,
        client: socket.socket,
        server: socket.socket,
        silent: threading.Event,
        answered: threading.Event,
    ) -> None:
        with suppress(OSError):
            while piece := client.recv(1 << 20):
                if _is_flush(piece) or not self._strikes():
                    server.sendall(piece)
                    continue
                if self._how == HALF_OPEN:
                    self._hanging.append(server)
                    hang_up(client)
                    return
                if self._how == UNANSWERED:
                    silent.set()
                    server.sendall(piece)
                    answered.wait(ANSWER_SECONDS)
                break
        hang_up(client, server)

    def _to_client(
        self,
        client: socket.socket,
        server: socket.socket,
        silent: threading.Event,
        answered: threading.Event,
    ) -> None:
        with suppress(OSError):
            while piece := server.recv(1 << 20):
                if self._lost_answer is not None and self._lost_answer in piece:
                    self._lost_answer = None
                    break
                if silent.is_set():
                    answered.set()
                else:
                    client.sendall(piece)
        hang_up(client, server)

    def _strikes(self) -> bool:
        with self._mutex:
            self._left -= 1
            if self._left == 0:
                self.struck = True
            return self._left == 0


def _is_flush(piece: bytes) -> bool:
    """Return whether a client sends nothing new. It may send this message alone or with others."""
    return not piece.strip(_FLUSH) and len(piece) % len(_FLUSH) == 0


def hang_up(*sides: socket.socket) -> None:
    """Let whoever reads from these, here or at the other end, read that they have ended."""
    for side in sides:
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_before(url: str) -> Iterator[tuple[CuttingProxy, str]]:
    """Put a proxy in front of the server of a database; also return the URL that leads through."""
    place = urlsplit(url)
    with closing(CuttingProxy(str(place.hostname), int(place.port or 0))) as proxy:
        through = place._replace(netloc=f"{place.username}@127.0.0.1:{proxy.port}")
        yield proxy, through.geturl()


def cut_everywhere(
    proxy: CuttingProxy, how: str, arrange: Callable[[], Any], act: Callable[[Any], None]
) -> int:
    """Repeat an action with a cut at every piece that it sends. Return how many cuts there were."""
    act(arrange())  # The connection is open then, so that the cuts hit the action itself.
    for nth in range(1, ENOUGH):
        arranged = arrange()
        proxy.cut(nth, how)
        act(arranged)
        if not proxy.struck:
            return nth - 1
    pytest.fail(f"the action was not complete after {ENOUGH} pieces")
