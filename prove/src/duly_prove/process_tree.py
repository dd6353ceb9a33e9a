"""Supervisors with their worker processes, as real process trees for fault injection.

Nothing here reads the store: faults must be possible while the store is blocked.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from duly.clock import monotonic
from duly.worker.start_marks import StartMarks
from duly.worker.worker_program import ENVIRONMENT
from duly_prove.observation_log import FOLDER_VARIABLE
from duly_prove.process_starter import ProcessStarter
from duly_prove.processes import environment_of, process, process_table, state_of

TREE_VARIABLE = "DULY_PROVE_TREE"
_LOOK_SECONDS = 0.002
_NONE: Mapping[str, str] = MappingProxyType({})


class TreeSettings(NamedTuple):
    """The settings that start one supervisor and its workers."""

    url: str
    folder: Path
    """The folder with the observations of all processes in this tree."""
    lease: float = 1.5
    beat: float = 0.4
    grace: float = 5.0
    processes: int = 2
    concurrency: int = 3
    async_limit: int = 20
    app: str = "duly_prove.workload:app"
    program: str = "duly_prove.supervisor_process"
    environment: Mapping[str, str] = _NONE
    spares: int = 3
    """How many child processes are forked in advance, in addition to the first ones."""


class WorkerChild(NamedTuple):
    """A worker process of a tree."""

    pid: int
    worker_id: str | None
    slots: Path | None

    @property
    def is_registered(self) -> bool:
        """Whether the worker is ready to claim. If this cannot be seen, it counts as ready."""
        return self.slots is None or _read_start_marks(self.slots, lambda slots: slots.registered)

    @property
    def is_busy(self) -> bool:
        """Whether it is running a task."""
        return self.slots is None or _read_start_marks(
            self.slots, lambda slots: any(not mark.ended for mark in slots.marks())
        )


class ProcessTree:
    """A supervisor process and its child processes."""

    def __init__(self, settings: TreeSettings, starter: ProcessStarter) -> None:
        self.settings = settings
        self.log = settings.folder / "workers.txt"
        self._reserve = settings.processes + settings.spares if starter.forks else 0
        options = settings._asdict() | {
            "folder": str(settings.folder),
            "parent": starter.parent,
            "reserve": self._reserve,
        }
        del options["environment"]
        environment = {
            TREE_VARIABLE: json.dumps(options),
            FOLDER_VARIABLE: str(settings.folder),
            "DULY_URL": settings.url,
            "DULY_LOG_LEVEL": "WARNING",
        }
        with self.log.open("ab") as log:
            self._process = starter.start(
                settings.program,
                [],
                environment | dict(settings.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.pid = self._process.pid
        self._known: dict[int, WorkerChild] = {}

    @property
    def is_running(self) -> bool:
        """Whether the supervisor has not ended."""
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        """The supervisor's exit status. It is negative for a signal, and None while it runs."""
        return self._process.poll()

    def children(self) -> list[WorkerChild]:
        """Return the worker processes that are alive now."""
        rows = process_table().values()
        pids = [row.pid for row in rows if row.parent == self.pid and row.state != "Z"]
        found = [self._known.get(pid) or self._child(pid) for pid in pids]
        # Between fork and exec a child is not a worker yet. It is examined again later.
        workers = [child for child in found if child.slots or not _CAN_SEE]
        self._known = {child.pid: child for child in workers}
        return workers

    def helpers(self) -> list[int]:
        """Return the supervisor's other child processes, such as the watchdog of its workers."""
        workers = {child.pid for child in self.children()}
        rows = process_table().values()
        mine = [row for row in rows if row.parent == self.pid and row.state != "Z"]
        return [row.pid for row in mine if row.pid not in workers]

    def signal_helpers(self, pids: Iterable[int], number: int) -> None:
        """Send a signal to the supervisor's other child processes."""
        for pid in pids:
            row = process(pid)
            if row is not None and row.parent == self.pid:
                _send(os.kill, pid, number)

    def signal_child(self, child: WorkerChild, number: int) -> bool:
        """Send a signal to one worker process. Return whether the process existed."""
        return self._is_ours(child) and _send(os.kill, child.pid, number)

    def signal_children(self, children: Iterable[WorkerChild], number: int) -> None:
        """Send a signal to worker processes and all their child processes."""
        for child in children:
            if self._is_ours(child):
                _send(os.killpg, child.pid, number)

    def signal_supervisor(self, number: int) -> bool:
        """Send a signal only to the supervisor."""
        if self._process.poll() is not None:
            return False
        return _send(os.kill, self.pid, number)

    def wait(self, seconds: float) -> int | None:
        """Wait for the supervisor's end and return its status, or None after a timeout."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """Kill all processes of this tree."""
        children = self.children() if self.is_running else []
        self.signal_supervisor(signal.SIGKILL)
        for child in children:
            # The supervisor's death kills its children. This also ends a frozen one.
            _send(os.killpg, child.pid, signal.SIGKILL)
        self._process.wait()

    def _child(self, pid: int) -> WorkerChild:
        text = environment_of(pid).get(ENVIRONMENT)
        if text is None and self._reserve:
            text = _read_note(self.settings.folder, self.pid, pid)
        if text is None:
            return WorkerChild(pid, None, None)
        config = json.loads(text)
        return WorkerChild(pid, config["worker_id"], Path(config["slots"]))

    def _is_ours(self, child: WorkerChild) -> bool:
        row = process(child.pid)
        return row is not None and row.parent == self.pid


def note_child(folder: Path, pid: int, config: str) -> None:
    """Record a child's configuration if its environment does not show it."""
    note = _note(folder, os.getpid(), pid)
    scratch = note.with_suffix(".new")
    scratch.write_text(config)
    scratch.rename(note)


def wait_for(condition: Callable[[], bool], seconds: float, pause: float = _LOOK_SECONDS) -> bool:
    """Wait until a condition is true. Return whether it became true in time."""
    until = monotonic() + seconds
    while not condition():
        if monotonic() >= until:
            return False
        pause_for(pause)
    return True


def pause_for(seconds: float) -> None:
    """Pause for a while."""
    threading.Event().wait(seconds)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process, as its parent would see with WIFSTOPPED."""
    return state_of(pid) == "T"


_CAN_SEE = sys.platform == "linux"


def _read_note(folder: Path, supervisor: int, pid: int) -> str | None:
    try:
        return _note(folder, supervisor, pid).read_text()
    except OSError:
        return None


def _note(folder: Path, supervisor: int, pid: int) -> Path:
    return folder / f"child-{supervisor}-{pid}.json"


def _read_start_marks(path: Path, look: Callable[[StartMarks], bool]) -> bool:
    try:
        slots = StartMarks(path)
    except (OSError, ValueError):
        return False
    try:
        return look(slots)
    finally:
        slots.close()


def _send(send: Callable[[int, int], None], pid: int, number: int) -> bool:
    try:
        send(pid, number)
    except ProcessLookupError:
        return False
    return True
