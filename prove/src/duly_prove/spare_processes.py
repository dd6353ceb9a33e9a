"""Processes that wait to become the children of a supervisor, forked before it opens anything.

Such a worker runs the same code as `python -m duly.worker.worker_program`, in its own session, as a
child of the supervisor. It saves the start of an interpreter, which is most of the cost of a kill.
"""

import json
import os
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from duly.worker import worker_program
from duly.worker.process_lifetime import die_with_parent
from duly.worker.worker_process import ChildProcess, start_child
from duly.worker.worker_program import ENVIRONMENT
from duly_prove.process_tree import note_child

_CONFIG_BYTES = 1 << 16


class _SpareProcess(NamedTuple):
    pid: int
    channel: socket.socket


class _SpareChild:
    """The attributes that a supervisor needs of a child process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


class SpareProcesses:
    """Starts a supervisor's children from the spare processes, and then as usual.

    Create it before the supervisor opens anything, since it forks.
    """

    def __init__(self, count: int, folder: Path) -> None:
        self._folder = folder
        self._waiting: list[_SpareProcess] = []
        for _ in range(count):
            self._waiting.append(self._fork())

    def start(self, config: str, inherited: Sequence[int]) -> ChildProcess:
        """Start a child."""
        if not self._waiting:
            return start_child(config, inherited)
        pid, channel = self._waiting.pop()
        note_child(self._folder, pid, config)
        with channel:
            socket.send_fds(channel, [config.encode()], inherited)
        return _SpareChild(pid)

    def _fork(self) -> _SpareProcess:
        supervisor = os.getpid()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            theirs.close()
            return _SpareProcess(pid, ours)
        try:
            die_with_parent(supervisor)
            for channel in (ours, *(waiting.channel for waiting in self._waiting)):
                channel.close()
            _wait_and_work(theirs)
        except BaseException:  # noqa: BLE001 - printed, and reported by the status
            traceback.print_exc()
        os._exit(1)


def _wait_and_work(channel: socket.socket) -> None:
    os.setsid()
    with channel:
        text, descriptors, *_ = socket.recv_fds(channel, _CONFIG_BYTES, 1)
    if text:
        config = json.loads(text)
        # The watchdog's descriptor has another number in this process.
        config["watchdog"] = descriptors[0] if descriptors else None
        os.environ[ENVIRONMENT] = json.dumps(config)
        worker_program.main()
