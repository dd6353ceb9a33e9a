"""A network connection between clients and a server that a test can cut and mend."""

import socket
import threading
from contextlib import suppress
from typing import Self


class Cable:
    """Carries bytes to a server and back. A cut cable carries none and reports no error.

    Bytes sent during a cut arrive after the repair, as with TCP after a partition.
    """

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._whole = threading.Event()
        self._whole.set()
        self._closed = False
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        self._whole.set()
        for end in (self._listening, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def cut(self) -> None:
        """Stop all bytes."""
        self._whole.clear()

    def mend(self) -> None:
        """Carry bytes again, waiting bytes first."""
        self._whole.set()

    def lead_to(self, port: int) -> None:
        """Carry new connections to another server. Existing connections do not change."""
        self._server = (self._server[0], port)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._server)
                self._ends += (client, server)
                for source, target in ((client, server), (server, client)):
                    source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    threading.Thread(target=self._carry, args=(source, target), daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while (piece := source.recv(1 << 16)) and not self._closed:
                self._whole.wait()
                target.sendall(piece)
            self._whole.wait()
            target.shutdown(socket.SHUT_RDWR)
