"""Append-only files that record what really happened, independent of duly's tables.

A line is one `write` to a descriptor opened with O_APPEND, so it exists completely or not at all,
whatever is killed. Bodies record every sign of life, effects are separate lines, supervisors and
workers record their events, and a process records a fault before it kills itself.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from duly.clock import SystemClock, monotonic
from duly.context import RunContext
from duly.events import Event, ResultDropped, WorkerEnded, WorkerStarted
from duly_prove.history import BodySignal, Effect, EnqueueRequest

FOLDER_VARIABLE = "DULY_PROVE_FOLDER"

BODIES = "bodies.log"
EFFECTS = "effects.log"
EVENTS = "events.log"
REQUESTS = "requests.log"
FAULTS = "struck.log"
LATE = "late.log"


class ObservationLog:
    """The files in one folder. Without a folder nothing is written."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._clock = SystemClock()
        self._descriptors: dict[str, int] = {}

    @classmethod
    def of_this_process(cls) -> Self:
        """Return a log in the folder that the environment names."""
        folder = os.environ.get(FOLDER_VARIABLE)
        return cls(Path(folder) if folder else None)

    # -- writing --

    def body_signal(self, kind: str, run: RunContext) -> None:
        """Record a sign of life of a run's body: begin, beat or end."""
        self._append(
            BODIES,
            [
                *(kind, run.run_id, run.fence, run.generation, run.task),
                *(os.getpid(), monotonic(), self._clock.now()),
            ],
        )

    def effect(self, run: RunContext, *, durable: bool = False) -> None:
        """Perform the effect of a task: add a line, and make it durable if requested."""
        self._append(EFFECTS, [run.run_id, run.fence, run.generation, run.task])
        if durable and self.folder is not None:
            os.fsync(self._descriptors[EFFECTS])

    def event(self, event: Event) -> None:
        """Record the events of a supervisor or worker about the ends of processes and claims."""
        if isinstance(event, WorkerEnded | WorkerStarted | ResultDropped):
            self._append(EVENTS, [type(event).__name__, os.getpid(), self._clock.now(), *event])

    def request(self, request: EnqueueRequest) -> None:
        """Record that a producer is about to enqueue a run, or that the run was accepted."""
        self._append(REQUESTS, list(request))

    def fault(self, point: str) -> None:
        """Record that this process is about to kill itself."""
        self._append(FAULTS, [point, os.getpid(), self._clock.now()])

    def late_write(self, refused: int) -> None:
        """Record that this process settled after a freeze, and how many results were refused."""
        self._append(LATE, [os.getpid(), refused])

    def _append(self, name: str, fields: list[Any]) -> None:
        if self.folder is None:
            return
        descriptor = self._descriptors.get(name)
        if descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            descriptor = self._descriptors[name] = os.open(self.folder / name, flags, 0o600)
        os.write(descriptor, json.dumps(fields).encode() + b"\n")

    # -- reading --

    def read_body_signals(self) -> list[BodySignal]:
        """Return the recorded signs of life."""
        return [BodySignal._make(fields) for fields in self._read(BODIES)]

    def read_effects(self) -> list[Effect]:
        """Return the effects recorded in this log."""
        return [Effect._make((*fields, "line")) for fields in self._read(EFFECTS)]

    def read_events(self) -> list[list[Any]]:
        """Return the events of supervisors and workers: name, pid, wall time, fields."""
        return list(self._read(EVENTS))

    def read_requests(self) -> list[EnqueueRequest]:
        """Return the requests of producers."""
        return [EnqueueRequest._make(fields) for fields in self._read(REQUESTS)]

    def read_faults(self) -> list[tuple[str, int]]:
        """Return the fault points at which processes killed themselves, with their pids."""
        return [(point, pid) for point, pid, _at in self._read(FAULTS)]

    def read_late_writes(self) -> list[int]:
        """Return for each settle after a freeze how many results were refused."""
        return [refused for _pid, refused in self._read(LATE)]

    def _read(self, name: str) -> Iterator[list[Any]]:
        if self.folder is None or not (self.folder / name).exists():
            return
        with (self.folder / name).open() as lines:
            for line in lines:
                if line.endswith("\n"):
                    yield json.loads(line)
