"""The files and connections that one process has open on a store, and their handling at a fork.

SQLite keeps its table of locks per process. If a child keeps its parent's connections and opens new
ones, SQLite assumes locks that the child does not have. When the parent closes, it detects no other
process and removes the write-ahead log, and the later commits of the child are lost. So a child
closes its inherited connections before it opens new ones. This is safe only while no transaction is
open. Therefore a fork waits for the end of an open transaction.

The lock file is different: a child shares its parent's `flock`, and would keep the lock if the
parent were killed inside a write. Every child therefore closes that file at once, even if it never
uses duly. Closing the file does not release the lock of a live parent.
"""

import math
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

from duly.clock import monotonic
from duly.errors import ReadTooSlow, StoreError
from duly.store.group_commit import Committer, Write
from duly.store.ops.op import size_of
from duly.store.sqlite.busy_timeout import BUSY_SECONDS, LOOK_SECONDS, is_busy, retry_while_busy
from duly.store.sqlite.connection import WriteLock, check_owners, connect, driver_errors
from duly.store.sqlite.file_identity import OpenFile

FORK_SECONDS = 5.0
"""How long a fork waits for a transaction. After that, the child cannot use the store."""
LOOK_INSTRUCTIONS = 10_000
"""A bounded read checks the clock after this many SQLite instructions, about a millisecond."""


class SqliteResources:
    """The lock, the two connections and the committer of one process."""

    def __init__(
        self, path: Path, write: Write, *, prepare: Callable[[sqlite3.Connection], None]
    ) -> None:
        _close_inherited()
        self.pid = os.getpid()
        with ExitStack() as opened:
            self.lock = WriteLock(path.with_name(path.name + "-duly.lock"))
            opened.callback(self.lock.close)
            # Opening reads the file. Without the lock, writers that never pause would block it.
            with driver_errors(path), self.lock.held():
                self.writer = opened.enter_context(closing(connect(path, seconds=LOOK_SECONDS)))
                retry_while_busy(path, partial(prepare, self.writer))
                self.reader = opened.enter_context(closing(connect(path)))
            # Checked again: another user may have put files there before SQLite created its own.
            check_owners(path)
            self.file = OpenFile(path)
            # Everything was opened without an error and stays open.
            opened.pop_all()
        self.reading = threading.Lock()
        self.committer = Committer(write, name="duly-committer", size_of=size_of)
        self.is_still = False
        self._keeps_readers_out = False
        _open_here.add(self)

    def close(self) -> None:
        """Close the file under the lock, since closing may checkpoint."""
        self.committer.close()
        # A connection is not closed while a thread still reads from it: the library would crash.
        with self.lock.held(), self.reading:
            self.reader.close()
            self.writer.close()
        self.lock.close()
        _open_here.discard(self)

    def read_within(
        self, seconds: float, sql: str, parameters: Mapping[str, Any]
    ) -> list[tuple[Any, ...]]:
        """Execute a statement that reads. Raise ReadTooSlow if it takes longer than `seconds`."""
        until = monotonic() + seconds
        if not self.reading.acquire(timeout=seconds):
            raise ReadTooSlow
        try:
            # A statement that waits for a lock executes no instructions. SQLite itself ends that
            # wait.
            self._wait_for_locks(min(BUSY_SECONDS, until - monotonic()))
            self.reader.set_progress_handler(lambda: monotonic() > until, LOOK_INSTRUCTIONS)
            return self.reader.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT or is_busy(error):
                raise ReadTooSlow from error
            raise
        finally:
            self.reader.set_progress_handler(None, 0)
            self._wait_for_locks(BUSY_SECONDS)
            self.reading.release()

    def _wait_for_locks(self, seconds: float) -> None:
        # Rounded to tenths, so that few different statements use space in the statement cache.
        tenths = max(1, math.ceil(seconds * 10))
        self.reader.execute(f"PRAGMA busy_timeout = {tenths * 100}")

    def quiesce(self) -> None:
        """Wait until this process has no open transaction, and let none begin until `resume`."""
        self.is_still = self.lock.quiesce(FORK_SECONDS)
        if self.is_still:
            self._keeps_readers_out = self.reading.acquire(timeout=FORK_SECONDS)
            if not self._keeps_readers_out:
                self.resume()

    def resume(self) -> None:
        """Let transactions begin again."""
        if self.is_still:
            self.is_still = False
            if self._keeps_readers_out:
                self._keeps_readers_out = False
                self.reading.release()
            self.lock.resume()

    def close_inherited(self) -> None:
        """Close the connections in a child. The parent continues to use its own."""
        self.reader.close()
        self.writer.close()


_open_here: "weakref.WeakSet[SqliteResources]" = weakref.WeakSet()
_inherited: list[SqliteResources] = []
_opening = threading.RLock()


def opening() -> AbstractContextManager[bool]:
    """Return the lock that a process holds while it opens its stores again."""
    return _opening


def _close_inherited() -> None:
    with _opening:
        if any(not process.is_still for process in _inherited):
            message = (
                "this process was forked during a transaction, and can neither use nor close its "
                "connection; open the store after the fork"
            )
            raise StoreError(message)
        while _inherited:
            _inherited.pop().close_inherited()


def _before_fork() -> None:
    for process in list(_open_here):
        process.quiesce()


def _after_fork_in_parent() -> None:
    for process in list(_open_here):
        process.resume()


def _after_fork_in_child() -> None:
    global _opening  # noqa: PLW0603 - another thread of the parent may have held it
    _opening = threading.RLock()
    for process in _open_here:
        process.lock.close()
        _inherited.append(process)
    _open_here.clear()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=_after_fork_in_parent,
    after_in_child=_after_fork_in_child,
)
