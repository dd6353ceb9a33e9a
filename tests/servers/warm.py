"""Forks programs from a Python that has imported already what they need.

Most of what a test of real workers costs is that each of them imports its engine. One process stays
warm, with all of that imported and nothing open; a program that is forked from it runs as one that
was started: in a session of its own, as `__main__`, with the environment and folder it is given.
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
    """A program that was started so, with those parts of a `Popen` that tests use."""

    def __init__(self, warm: "Warm", pid: int) -> None:
        self._warm = warm
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return how it ended, or None if it has not."""
        if self.returncode is None:
            self.returncode = self._warm.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float = 60.0) -> int:
        """Return how it ended, once it has; one that takes longer is left as it is."""
        wait_until(lambda: self.poll() is not None, seconds=timeout, what=f"{self.pid} has ended")
        assert self.returncode is not None
        return self.returncode

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        # Its number is its own until somebody has asked how it ended.
        if self.poll() is None:
            os.kill(self.pid, number)


class Warm:
    """The process that stays warm, from outside."""

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
        """Start `-m module …` or `script.py …`, as if it came behind the name of Python."""
        log.open("ab").close()  # It may be read before the program has come so far.
        order = {
            "program": list(program),
            "log": str(log.absolute()),
            "folder": str(folder.absolute()),
            "environment": dict(environment),
        }
        return Program(self, self.ask(order))

    def ask(self, order: dict[str, Any]) -> Any:
        """Have something done there; return what it says to that."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@cache
def warm(*modules: str) -> Warm:
    """Return a process that has imported these; it ends with this one, however that ends."""
    return Warm(modules)


def main() -> None:
    """Fork programs as told; in each of those, this returns once it is through with it."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    # What is never collected is never written to, and stays shared.
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
        # It may not have come so far as to have a session.
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
    # Whoever has the number can kill the session.
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
