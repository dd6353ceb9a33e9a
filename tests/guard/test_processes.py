"""Processes that race for one key, are killed while they hold it, or wake up too late."""

import os
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from duly.guard import Guard
from tests.servers.freeze import freeze, thaw
from tests.servers.processes import wait_until
from tests.servers.warm import ROOT, Program, warm

IMPORTS = ("duly.guard", "duly.store.postgres.store", "duly.store.sqlite.store")

pytestmark = pytest.mark.process


class Callers:
    """Processes that enter one key, and are all stopped after the test."""

    def __init__(self, url: str, log: Path, stack: ExitStack) -> None:
        self.url = url
        self._log = log
        self._stack = stack

    def start(self, how: str = "quick", key: str = "invoice:42") -> Program:
        """Start another process."""
        process = warm(*IMPORTS).start(
            ["-m", "tests.guard.body", self.url, key, str(self._log), how],
            log=self._log.with_name("said"),
            folder=ROOT,
            environment=os.environ,
        )
        self._stack.callback(process.wait, 20)
        self._stack.callback(process.kill)
        return process

    def notes(self, what: str) -> list[tuple[int, str]]:
        """Return the process id and the text of each note of this kind."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        words = [line.split(maxsplit=2) for line in lines]
        return [(int(pid), " ".join(rest)) for pid, found, *rest in words if found == what]

    def wait_for(self, what: str, count: int = 1) -> None:
        """Wait for this number of notes of this kind."""
        wait_until(
            lambda: len(self.notes(what)) >= count, seconds=30, what=f"{count} processes {what}"
        )

    def open_gate(self) -> None:
        """Let the lingering bodies end."""
        Path(f"{self._log}.gate").touch()


@pytest.fixture
def callers(store_url, tmp_path):
    """The processes on one store."""
    # Create the tables first, so that the processes race only for the key.
    with closing(Guard(store_url)) as guard:
        guard.look("invoice:42")
    with ExitStack() as stack:
        yield Callers(store_url, tmp_path / "notes", stack)


def test_eight_processes_on_one_key_run_the_body_once(callers):
    processes = [callers.start() for _ in range(8)]

    assert [process.wait(30) for process in processes] == [0] * 8

    ((winner, _),) = callers.notes("began")
    assert [pid for pid, _ in callers.notes("finished")] == [winner]
    assert [result for _, result in callers.notes("found")] == [str(winner)] * 7


def test_a_killed_holder_is_replaced_and_the_body_finishes_once(callers):
    first = callers.start("linger")
    callers.wait_for("began")
    first.kill()
    callers.open_gate()
    second = callers.start()

    assert second.wait(30) == 0

    assert [pid for pid, _ in callers.notes("began")] == [first.pid, second.pid]
    assert [pid for pid, _ in callers.notes("finished")] == [second.pid]


def test_a_frozen_holder_cannot_finish_once_it_was_replaced(callers):
    first = callers.start("linger")
    callers.wait_for("began")
    freeze(callers.url, first.pid)
    second = callers.start("linger")
    callers.wait_for("began", 2)
    thaw(first.pid)
    callers.open_gate()

    assert [first.wait(30), second.wait(30)] == [0, 0]

    fences = [int(fence) for _, fence in callers.notes("began")]
    assert fences == sorted(set(fences))
    assert [pid for pid, _ in callers.notes("lost")] == [first.pid]
    assert [pid for pid, _ in callers.notes("finished")] == [second.pid]
    third = callers.start()
    assert third.wait(30) == 0
    assert callers.notes("found") == [(third.pid, str(second.pid))]
