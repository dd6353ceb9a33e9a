"""Processes that wait to become the children of a keeper, forked before it opens anything.

A worker that uses one runs the same code as `python -m duly.worker.worker_program`, in a session of
its own, as a child of the supervisor. It saves the start of an interpreter, which is most of the
cost of a kill.
"""

import json
import os
import socket
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from duly.prove.process_tree import note_child
from duly.worker import worker_program
from duly.worker.process_lifetime import die_with_parent
from duly.worker.worker_process import ChildProcess, start_child
from duly.worker.worker_program import ENVIRONMENT

_CONFIG_BYTES = 1 << 16


class _SpareProcess(NamedTuple):
    pid: int
    channel: socket.socket


class _SpareChild:
    """What a keeper has to know of a process that it started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None


class SpareProcesses:
    """Starts a keeper's children as long as there are any in reserve, and then as everybody does.

    Made before the keeper opens anything, since it is forked.
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
        keeper = os.getpid()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid:
            theirs.close()
            return _SpareProcess(pid, ours)
        try:
            die_with_parent(keeper)
            for channel in (ours, *(waiting.channel for waiting in self._waiting)):
                channel.close()
            _wait_and_work(theirs)
        except BaseException:  # noqa: BLE001 - told, and by the status too
            traceback.print_exc()
        os._exit(1)


def _wait_and_work(channel: socket.socket) -> None:
    os.setsid()
    with channel:
        text, descriptors, *_ = socket.recv_fds(channel, _CONFIG_BYTES, 1)
    if text:
        config = json.loads(text)
        # What it is tied to has another number here.
        config["watchdog"] = descriptors[0] if descriptors else None
        os.environ[ENVIRONMENT] = json.dumps(config)
        worker_program.main()
