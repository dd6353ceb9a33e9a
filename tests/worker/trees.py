"""Real keepers with real children, started, signalled, and certainly gone in the end."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

from tests.servers.freeze import freeze, thaw
from tests.servers.processes import is_running, wait_until
from tests.servers.warm import warm
from tests.worker import shop

ROOT = Path(__file__).parents[2]
LEASE, BEAT = 1.5, 0.4
"""Short, so that a test need not wait long for a lease to end."""

IMPORTED = ("duly.worker.supervisor", "duly.store.postgres.store", "duly.store.sqlite.store")
"""What every keeper needs: each is forked from a process that has it, and starts its children as
it would anywhere."""


class Tree:
    """A keeper and its children. `with Tree(…) as tree:` leaves no process behind."""

    def __init__(
        self,
        url: str,
        folder: Path,
        *,
        app: str = "tests.worker.shop:app",
        processes: int = 1,
        drain: bool = False,
        environment: dict[str, str] | None = None,
        stuck_beats: Path | None = None,
        **settings: float,
    ) -> None:
        options = {"lease": LEASE, "beat": BEAT, "grace": 5.0, "concurrency": 4, "async_limit": 20}
        options |= settings | {"processes": processes, "drain": drain}
        if stuck_beats is not None:
            options["stuck_beats"] = str(stuck_beats)
        self.log = folder / f"tree-{time.monotonic_ns()}.log"
        self._processes = processes
        self._url = url
        self.keeper = warm(*IMPORTED).start(
            ["-m", "tests.worker.supervisor_program", app, url, json.dumps(options)],
            log=self.log,
            folder=ROOT,
            environment=os.environ | (environment or {}),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        # Once somebody has seen its end, its number may be another's.
        pids = [] if self.keeper.poll() is not None else [*self._started(), self.keeper.pid]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                os.kill(pid, signal.SIGCONT)
        self.keeper.wait(timeout=20)
        wait_until(
            lambda: not any(is_running(pid) for pid in pids), seconds=20, what="the tree is gone"
        )

    def ready(self) -> Self:
        """Wait until all children are registered."""
        wait_until(
            lambda: self.keeper.poll() is not None or self._is_at_work(),
            seconds=40,
            what=f"the tree works: {self.log.read_text()}",
        )
        assert self.keeper.poll() is None, self.log.read_text()
        return self

    def _is_at_work(self) -> bool:
        # The store is asked last: each time it would take from the keeper that is still starting.
        return len(self.children()) >= self._processes <= len(self.workers())

    def children(self) -> list[int]:
        """Return the process numbers of the worker processes that have not ended."""
        return [pid for pid in self._started() if not _is_watchdog(pid)]

    def watchdogs(self) -> list[int]:
        """Return the process numbers of what holds those."""
        return [pid for pid in self._started() if _is_watchdog(pid)]

    def _started(self) -> list[int]:
        listing = Path(f"/proc/{self.keeper.pid}/task/{self.keeper.pid}/children")
        try:
            return [pid for pid in map(int, listing.read_text().split()) if is_running(pid)]
        except FileNotFoundError:
            return []

    def workers(self) -> list[int]:
        """Return those children that the store calls live workers."""
        live = {worker.pid for worker in shop.app.workers.list() if worker.state == "live"}
        return [pid for pid in self.children() if pid in live]

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        """Send a signal to a child."""
        os.kill(pid, number)

    def terminate(self) -> None:
        """Ask the keeper to stop."""
        self.keeper.send_signal(signal.SIGTERM)

    def freeze(self, *pids: int) -> None:
        """Stop processes where they leave the others free to write, and wait until they are."""
        freeze(self._url, *pids)

    def thaw(self, *pids: int) -> None:
        """Let them go on."""
        thaw(*pids)

    def ended(self, seconds: float = 20.0) -> int:
        """Wait for the keeper's end and return its exit status."""
        try:
            return self.keeper.wait(timeout=seconds)
        except TimeoutError:
            raise TimeoutError(self.log.read_text()) from None


class Line(NamedTuple):
    """What a body of the shop noted."""

    what: str
    number: int
    attempt: int
    fence: int
    pid: int


class Notes:
    """The file in which the shop's bodies note their starts and ends, and the gate they wait at."""

    def __init__(self, folder: Path) -> None:
        self.log = str(folder / "notes")
        self.gate = str(folder / "gate")

    def arguments(self, number: int = 0) -> tuple[str, str, int]:
        """Return the arguments of a lingering task."""
        return self.log, self.gate, number

    def open_gate(self) -> None:
        """Let all lingering bodies end."""
        Path(self.gate).touch()

    def lines(self) -> list[Line]:
        """Return all lines."""
        try:
            text = Path(self.log).read_text()
        except FileNotFoundError:
            return []
        return list(_parsed(text))

    def starts(self, number: int | None = None) -> list[Line]:
        """Return the starts, of one body or of all."""
        return [
            line for line in self.lines() if line.what == "start" and number in {None, line.number}
        ]

    def ends(self, number: int | None = None) -> list[Line]:
        """Return the ends, of one body or of all."""
        return [
            line for line in self.lines() if line.what == "end" and number in {None, line.number}
        ]

    def wait_for_starts(self, count: int, *, seconds: float = 30.0) -> list[Line]:
        """Wait until that many bodies have begun."""
        wait_until(
            lambda: len(self.starts()) >= count,
            seconds=seconds,
            what=f"{count} starts: {self.lines()}",
        )
        return self.starts()


def _is_watchdog(pid: int) -> bool:
    try:
        return b"watchdog" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def _parsed(text: str) -> Iterator[Line]:
    for line in text.splitlines():
        what, *numbers = line.split()
        yield Line(what, *map(int, numbers))
