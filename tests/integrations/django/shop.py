"""`examples/django_shop` in processes of its own, on whichever database a test brings."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from duly import Duly
from tests.servers.processes import is_running, kill_with_children, wait_until

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "examples" / "django_shop"
SOON = 60.0


class Shop:
    """The project on one database."""

    def __init__(self, url: str, log: Path, folder: Path = SHOP, **environment: str) -> None:
        self.folder = folder
        self._environment = os.environ | {
            "SHOP_DATABASE": url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path]),
            **environment,
        }
        self.log = log

    def manage(self, *arguments: str) -> str:
        """Run a command to its end; give what it printed."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.folder,
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=SOON,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def ask(self, expression: str) -> str:
        """Return what an expression over the shop's models is, as text."""
        said = self.manage("shell", "--command", f"from shop.models import *; print({expression})")
        return said.splitlines()[-1]

    def working(self, *arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """Run a worker in the meantime, from another folder, as managers of services do."""
        manage = str(self.folder / "manage.py")
        return self.running(manage, "duly", "worker", *arguments, where=self.log.parent)

    @contextmanager
    def running(
        self, *program: str, where: Path | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """Run a program of Python's in the meantime."""
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, *program],
                cwd=where or self.folder,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_with_children(process)


def kill_one(seen: Duly) -> None:
    """Kill a process that runs tasks, and wait until it is gone."""
    victims: list[int] = []

    def is_there() -> bool:
        victims[:] = running_children(seen)
        return bool(victims)

    wait_until(is_there, seconds=SOON, what="a worker runs tasks")
    os.kill(victims[0], signal.SIGKILL)
    wait_until(lambda: not is_running(victims[0]), seconds=SOON, what="it is gone")


def running_children(seen: Duly) -> list[int]:
    """Return the processes that run tasks just now."""
    live = (each for each in seen.workers.list() if each.state == "live" and each.running)
    # One that was killed is called live until somebody has noticed.
    return [each.pid for each in live if is_running(each.pid)]
