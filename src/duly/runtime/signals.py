"""Signals, for a main thread that only watches."""

import contextlib
import select
import signal
import socket


class Signals:
    """SIGTERM, SIGINT and SIGCONT as something the main thread can wait for."""

    def __init__(self) -> None:
        self._asked = 0
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)  # noqa: FBT003 - the standard library's
        self._writer.setblocking(False)  # noqa: FBT003 - the standard library's
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._ask)
        # Only to wake up at once after a freeze, and look at the deadline first.
        signal.signal(signal.SIGCONT, lambda *_: None)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def wait(self, seconds: float) -> bool:
        """Wait for a signal; say whether one asked to stop since the last call."""
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self._reader.recv(4096)
        asked, self._asked = self._asked, 0
        return bool(asked)

    def _ask(self, *_: object) -> None:
        self._asked += 1
