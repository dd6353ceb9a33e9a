"""Limits how long duly waits for transactions on the application's own connections.

duly's own writers queue at the lock file. If a writer holds the lock file and the database is
still locked, then a connection outside duly holds the database lock. A connection of another
process ends its transaction eventually. A connection of this process may belong to the caller,
which is waiting for duly, so that neither would continue. Linux shows which process has a lock.
duly therefore stops waiting for a transaction of this process that makes no progress.
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
"""How long SQLite waits in a writing connection before duly checks which process has the lock."""
BUSY_SECONDS = 30.0
"""How long to wait in total."""
_LOOKS = round(BUSY_SECONDS / LOOK_SECONDS)

_WAL_WRITER, _RESERVED = 120, 0x40000001
"""The bytes that a writer locks: in WAL mode of the shared memory, otherwise of the database."""


def retry_while_busy(path: Path, begin: Callable[[], T]) -> T:
    """Begin a transaction, and retry while another connection has the lock.

    Raise WouldBlockItself if a connection of this process has it and makes no progress.
    """
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
    """Commit. Outside WAL mode, the commit waits for readers."""
    for look in range(_LOOKS):
        try:
            connection.execute("COMMIT")
        except sqlite3.OperationalError as error:
            if not is_busy(error) or look == _LOOKS - 1:
                raise
        else:
            return


def is_busy(error: sqlite3.Error) -> bool:
    """Return whether a statement failed because another connection had a lock."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}


def _transaction_here(path: Path) -> object:
    """Return a value that identifies this process's transaction; None if it has none.

    The value changes when the transaction writes, or when another one follows it.
    """
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
    """Return whether this process has locked a byte.

    The file is not opened for this check, since closing it again would release the lock.
    """
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
