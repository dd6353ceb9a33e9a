"""Stops and continues processes without blocking other writers."""

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
    """Stop processes that use a store, and wait until they have stopped.

    A process that is stopped inside a write transaction on SQLite would block every other writer
    for ever.
    """
    for _ in range(20):
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        for pid in pids:
            wait_until(lambda pid=pid: state_of(pid) in {"T", ""}, seconds=20, what="it stops")
        if _can_write(url):
            return
        thaw(*pids)
        time.sleep(0.01)  # the transaction ends in this time
    message = "every attempt stopped the processes inside a write transaction"
    raise AssertionError(message)


def thaw(*pids: int) -> None:
    """Continue the processes."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    """Return the kernel's state of a process, or an empty text if the process does not exist."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


def _can_write(url: str) -> bool:
    """Return whether the write lock of an SQLite database is free."""
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
