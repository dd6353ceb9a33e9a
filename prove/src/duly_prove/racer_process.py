"""A separate process that tries to acquire a lock at the same moment as others."""

import json
import os
import subprocess
import sys
from typing import IO, NamedTuple, Self, cast

from duly.app import Duly
from duly.clock import MICROSECONDS, new_id
from duly.store.ops.locks import AcquireLock
from duly.worker.process_lifetime import die_with_parent
from duly_prove.process_starter import ProcessStarter, StartedProcess

TTL_SECONDS = 600
"""Longer than any race, so that the last process still meets the first one's lock."""


class RacerResult(NamedTuple):
    """The result of one attempt to acquire the lock."""

    pid: int
    is_ours: bool
    owner: str
    fence: int


class LockRacers:
    """Processes that race repeatedly. Use it as a context manager."""

    def __init__(self, starter: ProcessStarter, url: str, count: int) -> None:
        self._gate, self._opener = os.pipe()
        self._processes = [
            starter.start(
                "duly_prove.racer_process",
                [str(starter.parent), str(self._gate)],
                {"DULY_URL": url},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=(self._gate,),
            )
            for _ in range(count)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for racer in self._processes:
            racer.kill()
            racer.communicate()
        os.close(self._gate)
        os.close(self._opener)

    def race(self, name: str) -> list[RacerResult]:
        """Let all processes try to acquire a lock at once. Return their results."""
        # The process that waits longest at the gate passes first, so rotate them for every race.
        self._processes.append(self._processes.pop(0))
        for racer in self._processes:
            cast("IO[str]", racer.stdin).write(f"{name}\n")
        for racer in self._processes:
            _answer(racer)
        # One write for all processes: each waits at the gate, and one byte lets one through.
        os.write(self._opener, b"." * len(self._processes))
        return [RacerResult._make(json.loads(_answer(racer))) for racer in self._processes]


def _answer(racer: StartedProcess) -> str:
    line = cast("IO[str]", racer.stdout).readline()
    if not line:
        message = f"a racer ended by itself, with status {racer.wait()}"
        raise RuntimeError(message)
    return line


def main() -> None:
    """Race on request."""
    parent, gate = map(int, sys.argv[1:])
    die_with_parent(parent)
    store = Duly().store
    for line in sys.stdin:
        _write_line("ready")
        os.read(gate, 1)
        owner = new_id()
        op = AcquireLock(line.rstrip("\n"), owner, str(os.getpid()), TTL_SECONDS * MICROSECONDS)
        found = store.do(op)
        _write_line(json.dumps(RacerResult(os.getpid(), found.is_ours, owner, found.fence)))


def _write_line(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
