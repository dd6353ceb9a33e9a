"""The processes of workers, as their supervisor starts, signals and kills them."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from duly.settings import WorkerSettings
from duly.worker import worker_program as child_program
from duly.worker.start_marks import StartMarks
from duly.worker.watchdog_program import kill_marked
from duly.worker.worker_program import ENVIRONMENT


class ChildProcess(Protocol):
    """What a keeper knows of a process that it started; the rest it asks the system."""

    returncode: int | None

    @property
    def pid(self) -> int: ...


@dataclass(slots=True)
class SupervisedWorker:
    """A worker process, and what its supervisor notes about it."""

    process: ChildProcess
    worker_id: str
    slots: StartMarks
    settings: WorkerSettings
    one_slot: bool
    started_at: float
    frozen_since: float | None = None
    retired_at: float | None = None

    @property
    def running(self) -> int:
        """How many tasks have begun there and have not ended."""
        return sum(not mark.ended for mark in self.slots.marks())

    def is_overdue(self, at: float) -> bool:
        """Return whether a task that runs had passed its timeout at that time."""
        return any(not mark.ended and at > mark.overdue_at for mark in self.slots.marks())


def have_drained(workers: Collection[SupervisedWorker], since: float) -> bool:
    """Return whether nothing is left to do for workers, also of the runs that were settled then.

    All of them were without runs at one instant, and the last one to look found none.
    """
    first, second = ([worker.slots.drained_since for worker in workers] for _ in range(2))
    for worker, at in zip(workers, first, strict=True):
        if 0.0 < at <= since:
            worker.slots.forget_drained()  # It looks again.
    return first == second and all(at > since for at in first)


Start = Callable[[str, Sequence[int]], ChildProcess]
"""Starts a worker process with its configuration and the descriptors that it is to inherit."""


def start_child(config: str, inherited: Sequence[int]) -> ChildProcess:
    """Start a worker process, in a session of its own."""
    return subprocess.Popen(  # noqa: S603 - this interpreter, our own module
        [sys.executable, "-m", child_program.__name__],
        env=os.environ | {ENVIRONMENT: config},
        stdin=subprocess.DEVNULL,
        pass_fds=inherited,
        start_new_session=True,
    )


def ask_to_stop(process: ChildProcess) -> None:
    """Send SIGTERM.

    Not by Popen, which would reap a child that has ended, and hide its end from the keeper. Its
    number is nobody else's until it is reaped.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGTERM)


def kill_group(process: ChildProcess) -> None:
    """Kill a worker process and whatever it started that is still in its process group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def kill_leftover_processes(process: ChildProcess, worker_id: str) -> None:
    """Kill whatever a worker process that has ended left running, in its group or elsewhere."""
    kill_group(process)
    kill_marked(worker_id)
