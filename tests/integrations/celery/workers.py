"""Real Celery workers, started, killed, and certainly gone in the end."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.servers.processes import is_running, wait_until

ROOT = Path(__file__).parents[3]


class CeleryWorker:
    """A worker with its pool. `with CeleryWorker(…) as worker:` leaves nobody behind."""

    def __init__(
        self,
        folder: Path,
        environment: dict[str, str],
        *options: str,
        application: str = "tests.integrations.celery.shop",
    ) -> None:
        self.log = folder / f"celery-{os.urandom(4).hex()}.log"
        command = [
            *(sys.executable, "-m", "celery", "-A", application, "worker"),
            *("--loglevel", "INFO", "--without-gossip", "--without-mingle", "--without-heartbeat"),
            *(options or ("--concurrency", "2")),
        ]
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        wait_until(
            lambda: " ready." in self.log.read_text() or self._process.poll() is not None,
            seconds=40,
            what=f"the worker is ready: {self.log}",
        )
        assert self._process.poll() is None, self.log.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        # The pool's processes are in the session that was made for them and for nothing else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def kill(self) -> None:
        """Kill the worker and all of its pool at once, as a machine that loses power does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)

    def freeze(self) -> None:
        """Stop all of it."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let all of it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def is_alive(self) -> bool:
        """Say whether the worker itself, whatever became of its pool, has not ended."""
        return is_running(self._process.pid)
