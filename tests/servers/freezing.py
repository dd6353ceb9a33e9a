"""Processes that are stopped and let go on, where they leave others free to write."""

import contextlib
import fcntl
import os
import signal
import sqlite3
import time
from pathlib import Path

from duly.store.store_factory import sqlite_path
from tests.servers.processes import wait_until


def freeze(url: str, *pids: int) -> None:
    """Stop processes that use a store, and wait until they are.

    One that is stopped inside a write transaction on SQLite keeps every other writer waiting, and
    nobody would end that.
    """
    for _ in range(20):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            wait_until(lambda pid=pid: state_of(pid) in {"T", ""}, seconds=20, what="it stops")
        if _can_write(url):
            return
        thaw(*pids)
        time.sleep(0.01)  # long enough for the transaction to end
    message = "they were inside a write transaction every time they were stopped"
    raise AssertionError(message)


def thaw(*pids: int) -> None:
    """Let them go on."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    """Return what the kernel says of a process; nothing if there is none."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _can_write(url: str) -> bool:
    """Say whether nobody holds the write lock of an SQLite database."""
    if not url.startswith("sqlite:"):
        return True
    path = sqlite_path(url)
    with contextlib.closing(sqlite3.connect(path, timeout=0.2, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
    with path.with_name(f"{path.name}-duly.lock").open("ab") as queue:
        try:
            fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
