"""A separate process that counts effects, as a payment provider does for a shop.

`python -m tests.integrations.counter LOG` prints its port. It appends every line that it receives
to LOG before it answers, so a counted effect stays counted even if the sender or the counter dies.
"""

import os
import socket
import socketserver
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Self

ROOT = Path(__file__).parents[2]


def tell(port: int, what: str, subject: object) -> None:
    """Report an effect to the counter. Return when it is counted."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(f"{what} {subject} {os.getpid()}\n".encode())
        assert connection.recv(2) == b"ok"


class EffectCounter:
    """The counter process, as seen by the test. `with EffectCounter(…) as counter:` ends it."""

    def __init__(self, log: Path) -> None:
        self._log = log

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.integrations.counter", str(self._log)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate(timeout=20)

    def effects(self, what: str) -> list[tuple[str, int]]:
        """Return the reported effects: the subject, and the process that reported it."""
        words = [line.split() for line in self._log.read_text().splitlines()]
        return [(subject, int(pid)) for found, subject, pid in words if found == what]

    def count(self, what: str) -> Counter[str]:
        """Return how often each subject was reported."""
        return Counter(subject for subject, _ in self.effects(what))

    def at_work(self) -> dict[int, str]:
        """Return the processes that have begun a task and not ended it, with its subject."""
        found = {}
        for line in self._log.read_text().splitlines():
            what, subject, pid = line.split()
            if what == "began":
                found[int(pid)] = subject
            elif what == "ended":
                found.pop(int(pid), None)
        return found


class _Listener(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        line = self.rfile.readline()
        if line.endswith(b"\n"):
            os.write(self.server.log, line)  # type: ignore[attr-defined]
            self.wfile.write(b"ok")


def main(log: str) -> None:
    """Count effects until the process is terminated."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Listener) as server:
        server.daemon_threads = True
        server.log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)  # type: ignore[attr-defined]
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
