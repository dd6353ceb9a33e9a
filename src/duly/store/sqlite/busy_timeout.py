"""How long duly waits for transactions of the application's own connections.

duly's own writers queue at the lock file. Whoever holds that and still finds the database locked
waits for a connection that is not duly's. One of another process ends its transaction by and by.
One of this process may be the very caller's, who waits for us meanwhile: Linux tells which process
has a lock, and a transaction of this one that stands still is not waited for.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from duly.errors import WouldBlockItself

T = TypeVar("T")

LOOK_SECONDS = 1.0
"""How long SQLite waits in a writing connection before we look who is in the way."""
BUSY_SECONDS = 30.0
"""How long to wait in all."""
_LOOKS = round(BUSY_SECONDS / LOOK_SECONDS)

_WAL_WRITER, _RESERVED = 120, 0x40000001
"""The bytes that a writer locks: of the shared memory in WAL mode, else of the database."""


def retry_while_busy(path: Path, begin: Callable[[], T]) -> T:
    """Do what begins a transaction, again while others are in the way, but not for ourselves."""
    seen: object = None
    for look in range(_LOOKS):
        try:
            return begin()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or look == _LOOKS - 1:
                raise
            found = _transaction_here(path)
            if found is not None and found == seen:
                message = (
                    f"a connection of this process has held the write lock of {path} for "
                    f"{2 * LOOK_SECONDS:g} s without committing; if it is your own, write in its "
                    "transaction with using(connection=…), or end that transaction first; if it "
                    "belongs to another thread, which SQLite does not report, try again after it "
                    "has ended, and keep it shorter"
                )
                raise WouldBlockItself(message) from error
            seen = found
    raise AssertionError("the last look returns or raises")


def commit(connection: sqlite3.Connection) -> None:
    """Commit; outside of WAL mode readers are waited for."""
    for look in range(_LOOKS):
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or look == _LOOKS - 1:
                raise
        else:
            return


def is_busy(error: sqlite3.Error) -> bool:
    """Say whether it was another connection that was in the way."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _transaction_here(path: Path) -> object:
    """Return what tells a transaction of this process from the next one; None if it has none."""
    log, memory = (path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))
    if not (_is_locked_here(memory, _WAL_WRITER) or _is_locked_here(path, _RESERVED)):
        return None
    stamps: list[tuple[int, int]] = []
    for file in (path, log):
        with suppress(OSError):
            found = file.stat()
            stamps.append((found.st_mtime_ns, found.st_size))
    return stamps


def _is_locked_here(file: Path, byte: int) -> bool:
    """Say whether this process has locked a byte; opening the file to ask would let go of it."""
    try:
        inode = str(file.stat().st_ino)
        locks = Path("/proc/locks").read_text()
    except OSError:
        return False
    own = str(os.getpid())
    for line in locks.splitlines():
        # 1: POSIX  ADVISORY  WRITE 4711 08:02:131 120 120
        _, kind, *_, mode, pid, place, first, last = line.split()
        if (
            (kind, mode, pid) == ("POSIX", "WRITE", own)
            and place.rpartition(":")[2] == inode
            and int(first) <= byte
            and (last == "EOF" or byte <= int(last))
        ):
            return True
    return False
