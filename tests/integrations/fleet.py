"""A worker of another engine in a session of its own: started, killed, and certainly gone."""

import contextlib
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from tests.servers.freezing import freeze
from tests.servers.processes import is_running, wait_until
from tests.servers.warm import warm

ROOT = Path(__file__).parents[2]


class FleetWorker:
    """`with FleetWorker(…) as worker:` leaves nobody behind, whatever groups its children form."""

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
        """Name a module with its arguments, which writes `ready` to its log when it is.

        It finds what `imports` names imported already, and starts in `folder`.
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
        """Kill the worker and all its children at once, as a machine that loses power does."""
        self._signal(signal.SIGKILL)
        self._process.wait(20)

    def stop(self) -> None:
        """Ask the worker to end, and wait: what a broker sends to one that was killed is lost."""
        self._process.terminate()
        self._process.wait(30)
        self.kill()

    def freeze(self, url: str) -> None:
        """Stop all of it, where it leaves others free to write into the store."""
        freeze(url, *self.members())

    def thaw(self) -> None:
        """Let all of it go on."""
        self._signal(signal.SIGCONT)

    def is_alive(self) -> bool:
        """Say whether the worker itself, whatever became of its children, has not ended."""
        return is_running(self._process.pid)

    def members(self) -> list[int]:
        """Return its processes: those of the session that was made for them alone."""
        found = []
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                with contextlib.suppress(OSError):
                    after_name = (place / "stat").read_text().rpartition(")")[2].split()
                    if int(after_name[3]) == self._process.pid:
                        found.append(int(place.name))
        return found

    def _signal(self, number: signal.Signals) -> None:
        # A child that is forked meanwhile is found by the second look.
        for _ in range(2):
            for member in self.members():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(member, number)
