"""A worker of another engine in its own session: started, killed, and always removed."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.servers.freeze import freeze
from tests.servers.processes import is_running, wait_until
from tests.servers.warm import warm

ROOT = Path(__file__).parents[2]


class FleetWorker:
    """A worker as a context manager that leaves no process running.

    It also ends children that have formed their own process groups.
    """

    def __init__(
        self,
        module: Sequence[str],
        log: Path,
        environment: dict[str, str],
        *,
        ready: str,
        imports: Sequence[str],
        folder: Path = ROOT,
    ) -> None:
        """Name a module with its arguments. The module writes `ready` to its log when it is ready.

        The modules in `imports` are imported in advance, and the module starts in `folder`.
        """
        self.log = log
        self._ready = ready
        log.write_bytes(b"")
        self._process = warm(*imports).start(
            ["-m", *module], log=log, folder=folder, environment=os.environ | environment
        )

    def __enter__(self) -> Self:
        wait_until(
            lambda: self._ready in self.log.read_text() or self._process.poll() is not None,
            seconds=40,
            what=f"the worker is ready: {self.log}",
        )
        assert self._process.poll() is None, self.log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the worker and all its children at once, like a power failure."""
        self._signal(signal.SIGKILL)
        self._process.wait(20)

    def stop(self) -> None:
        """Ask the worker to end and wait.

        Messages that a broker sends to a killed worker are lost.
        """
        self._process.terminate()
        self._process.wait(30)
        self.kill()

    def freeze(self, url: str) -> None:
        """Stop all processes at a moment when other processes can write to the store."""
        freeze(url, *self.members())

    def thaw(self) -> None:
        """Let all processes continue."""
        self._signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        """Return whether the worker process itself is alive, regardless of its children."""
        return is_running(self._process.pid)

    def members(self) -> list[int]:
        """Return the worker's processes: all those in its own session."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                with contextlib.suppress(OSError):
                    after_name = (place / "stat").read_text().rpartition(")")[2].split()
                    if int(after_name[3]) == self._process.pid:
                        found.append(int(place.name))
        return found

    def _signal(self, number: signal.Signals) -> None:
        # The second look finds a child that is forked meanwhile.
        for _ in range(2):
            for member in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, number)
