"""`examples/django_shop` in its own processes, on the database of the test."""

import os
import secrets
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from duly import Duly
from tests.integrations.django.imports import IMPORTS
from tests.servers.processes import is_running, kill_with_children, wait_until
from tests.servers.warm import Program, warm

ROOT = Path(__file__).parents[3]
SHOP = ROOT / "examples" / "django_shop"
SOON = 60.0


class Shop:
    """The project on one database."""

    applications: tuple[str, ...] = ("duly", "shop")

    def __init__(self, url: str, log: Path, folder: Path = SHOP, **environment: str) -> None:
        self.folder = folder
        self._url = url
        self._environment = os.environ | {
            "SHOP_DATABASE": url,
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *sys.path]),
            **environment,
        }
        self.log = log

    def manage(self, *arguments: str) -> str:
        """Run a command to its end. Return its output."""
        said = self.log.with_name(f"said-{secrets.token_hex(4)}")
        status = self._start("manage.py", *arguments, log=said).wait(SOON)
        assert status == 0, said.read_text()
        return said.read_text()

    def set_up(self, *command: str) -> None:
        """Make the tables that tasks need, and run one more command, all in one process.

        The tables of Django's admin take the most time to make, and tasks do not use them.
        """
        commands = [("migrate", name, "--verbosity", "0") for name in self.applications]
        calls = "; ".join(f"call_command(*{each!r})" for each in (*commands, command) if each)
        self.manage("shell", "--command", f"from django.core.management import *; {calls}")

    def read(self, query: str) -> list[Any]:
        """Return one column of the shop's tables, as committed."""
        with closing(self._connect()) as connection:
            return [value for (value,) in connection.execute(query).fetchall()]

    def working(self, *arguments: str) -> AbstractContextManager[Program]:
        """Run a worker during the block, in another folder, as service managers do."""
        manage = str(self.folder / "manage.py")
        return self.running(manage, "duly", "worker", *arguments, where=self.log.parent)

    @contextmanager
    def running(self, *program: str, where: Path | None = None) -> Iterator[Program]:
        """Run a Python program during the block."""
        process = self._start(*program, log=self.log, where=where)
        try:
            yield process
        finally:
            if process.poll() is None:
                kill_with_children(process)

    def _connect(self) -> sqlite3.Connection | psycopg.Connection:
        if self._url.startswith("sqlite"):
            return sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=SOON)
        return psycopg.connect(self._url)

    def _start(self, *program: str, log: Path, where: Path | None = None) -> Program:
        return warm(*IMPORTS).start(
            program, log=log, folder=where or self.folder, environment=self._environment
        )


def kill_one(seen: Duly, *, after: float = 0.0) -> None:
    """Kill a process that has run tasks for some seconds, and wait until it has ended.

    A task that is claimed has not yet begun; a process that is killed then loses none.
    """
    busy_since: dict[int, float] = {}
    victims: list[int] = []

    def is_there() -> bool:
        now = time.monotonic()
        busy = running_children(seen)
        for idle in busy_since.keys() - set(busy):
            del busy_since[idle]
        victims[:] = [pid for pid in busy if now - busy_since.setdefault(pid, now) >= after]
        return bool(victims)

    wait_until(is_there, seconds=SOON, what="a worker runs tasks")
    os.kill(victims[0], signal.SIGKILL)
    wait_until(lambda: not is_running(victims[0]), seconds=SOON, what="the process has ended")


def running_children(seen: Duly) -> list[int]:
    """Return the processes that run tasks now."""
    live = (each for each in seen.workers.list() if each.state == "live" and each.running)
    # A killed process counts as live until another process has noticed its death.
    return [each.pid for each in live if is_running(each.pid)]
