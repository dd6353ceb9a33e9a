"""Runs a real worker in its own processes, and reads their figures from the kernel."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Self

from duly.worker import watchdog_program

ROOT = Path(__file__).parent.parent
START_SECONDS = 60.0
STOP_SECONDS = 60.0


class WorkerProcess:
    """A supervisor with one child, on the store at a URL. `with` starts and stops it."""

    def __init__(self, url: str, *, environment: dict[str, str] | None = None) -> None:
        self._url = url
        self._environment = as_installed() | (environment or {})
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-m", "benchmarks.supervisor", self._url],
            cwd=ROOT,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"the worker did not stop: {self.output()}") from None
        finally:
            self._log.close()

    @property
    def supervisor(self) -> int:
        """The process id of the supervisor."""
        return self._running().pid

    @property
    def child(self) -> int:
        """The process id of the only child. Waits until it has started."""
        self.wait_until(lambda: len(self._workers()) == 1, "the supervisor starts its child")
        return self._workers()[0]

    @property
    def watchdog(self) -> int:
        """The process id of the watchdog, which kills the child if the supervisor is gone."""
        self.wait_until(lambda: len(children_of(self.supervisor)) == 2, "both are there")
        (watchdog,) = set(children_of(self.supervisor)) - set(self._workers())
        return watchdog

    def _workers(self) -> list[int]:
        return [pid for pid in children_of(self.supervisor) if not _is_watchdog(pid)]

    def wait_until(
        self,
        condition: Callable[[], bool],
        what: str,
        *,
        seconds: float = START_SECONDS,
        look_seconds: float = 0.05,
    ) -> None:
        """Poll a condition until it holds. Raise an error if the worker has ended."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self._running().poll() is not None:
                raise RuntimeError(f"the worker ended: {self.output()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:g} s in vain: {what}: {self.output()}")
            time.sleep(look_seconds)

    def output(self) -> str:
        """Return what the worker printed."""
        self._log.seek(0)
        return self._log.read().decode(errors="replace")

    def _running(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the worker was not started"
        return self._process


def as_installed() -> dict[str, str]:
    """Return an environment in which modules load from byte code, as installed packages do.

    The byte code is in a folder of this run, even if the environment disables writing byte code.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _ABOUT_BYTE_CODE}
    return kept | {"PYTHONPYCACHEPREFIX": _byte_code_folder().name}


_ABOUT_BYTE_CODE = {"PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}


@cache
def _byte_code_folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory(prefix="duly-bench-byte-code-")


def _is_watchdog(pid: int) -> bool:
    return (
        Path(watchdog_program.__file__).name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    )


def children_of(pid: int) -> list[int]:
    """Return the children of a process."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]


def cpu_seconds(pid: int) -> float:
    """Return what a process has used of the processor, in user and system mode."""
    # The command's name comes second, in parentheses, and may hold blanks itself.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system = int(fields[11]), int(fields[12])
    return (user + system) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Return a process's proportional and resident memory (PSS and RSS) in MiB."""
    kilobytes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, amount, _ = line.split()
        kilobytes[name] = int(amount)
    return kilobytes["Pss:"] / 1024, kilobytes["Rss:"] / 1024
