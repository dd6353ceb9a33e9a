"""Forks programs from a Python process that has already imported their modules.

Imports of the engine cost most of the time of a test with real workers. One process stays warm: it
has imported everything and opened nothing. A program forked from it runs like a started program: in
its own session, as `__main__`, with its own environment and folder.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from tests.servers.processes import wait_until

ROOT = Path(__file__).parents[2]


class Program:
    """A forked program, with those parts of a `Popen` that tests use."""

    def __init__(self, warm: "Warm", pid: int) -> None:
        self._warm = warm
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the program runs."""
        if self.returncode is None:
            self.returncode = self._warm.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for the end and return the exit status. A timeout does not end the program."""
        wait_until(lambda: self.poll() is not None, seconds=timeout, what=f"{self.pid} has ended")
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the program has ended."""
        # The process id is not reused until a parent has read the exit status.
        if self.poll() is None:
            os.kill(self.pid, number)


class Warm:
    """A client of the warm process."""

    def __init__(self, modules: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.warm", *modules],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        atexit.register(self._process.communicate)

    def start(
        self, program: Sequence[str], *, log: Path, folder: Path, environment: Mapping[str, str]
    ) -> Program:
        """Start `-m module …` or `script.py …`, like the arguments of Python."""
        log.open("ab").close()  # A test may read the log before the program has opened it.
        order = {
            "program": list(program),
            "log": str(log.absolute()),
            "folder": str(folder.absolute()),
            "environment": dict(environment),
        }
        return Program(self, self.ask(order))

    def ask(self, order: dict[str, Any]) -> Any:
        """Send a request to the warm process. Return its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@cache
def warm(*modules: str) -> Warm:
    """Return a process that has imported these modules. It ends with this process."""
    return Warm(modules)


def main() -> None:
    """Fork programs on request. In each fork, this returns after the program has run."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # Frozen objects are never collected, so their memory stays shared.
    gc.collect()
    gc.freeze()
    begun: set[int] = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "ended" in order:
            _say(_ended(order["ended"], begun))
        elif pid := os.fork():
            begun.add(pid)
        else:
            return _become(**order)
    for pid in begun:
        # The program may not have its session yet.
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
    return None


def _say(answer: int | None) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def _ended(pid: int, begun: set[int]) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        return None
    begun.discard(pid)
    return os.waitstatus_to_exitcode(status)


def _become(program: list[str], log: str, folder: str, environment: dict[str, str]) -> None:
    # The process id also identifies the session, which a test can kill.
    os.setsid()
    _say(os.getpid())
    _redirect(os.devnull, os.O_RDONLY, 0)
    _redirect(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 1)
    os.dup2(1, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:0] = [*filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    if program[0] == "-m":
        sys.argv = program[1:]
        sys.path.insert(0, folder)
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        sys.path.insert(0, str(Path(program[0]).resolve().parent))
        runpy.run_path(program[0], run_name="__main__")


def _redirect(path: str, flags: int, number: int) -> None:
    place = os.open(path, flags, 0o600)
    os.dup2(place, number)
    os.close(place)


if __name__ == "__main__":
    main()
