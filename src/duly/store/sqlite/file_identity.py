"""Identifies a store's file, so that a replaced, copied or moved file does not stay in use.

A process keeps a file open after the file was replaced, and would accept runs into a file that no
longer has a name. A copy holds the same runs as its original, so two workers would run each of
them. A file that was moved to PostgreSQL still holds all of the moved data.
"""

import sqlite3
from itertools import product
from pathlib import Path

from duly.clock import monotonic
from duly.errors import StoreRefused
from duly.store.statements import load

SQL = load("sqlite", "restore")
NO_INODE = -1
"""A backup stores this instead of an inode, so that it counts as a copy wherever it is put."""


CHECK_SECONDS = 0.02
"""How long a process relies on its last check of the file. Writes in between are lost if the file
was replaced, like the writes right before the replacement."""


class OpenFile:
    """The file that a process has open. Another file may take its name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._id = self._look()
        self._checked_at = monotonic()

    def check(self) -> None:
        """Refuse to use the file if its name now belongs to another file, or to no file."""
        # The check does not run before each statement: it lets other threads run before this one
        # continues.
        now = monotonic()
        if now - self._checked_at < CHECK_SECONDS:
            return
        try:
            is_same = self._look() == self._id
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise StoreRefused(
                f"{self._path} was replaced or removed while this process had it open; this "
                "process writes nothing more to the old file: restart it"
            )
        self._checked_at = now

    def _look(self) -> tuple[int, int]:
        """Return the device and inode, which identify the file with this name on this host."""
        found = self._path.stat()
        return found.st_dev, found.st_ino


def adopt_file(cursor: sqlite3.Cursor) -> None:
    """Record that this file is the store itself, even if it was a copy."""
    inode = _inode_of(cursor)
    if inode is not None:
        cursor.execute(SQL["adopt_file"], {"inode": inode})


def adopt_file_if_idle(cursor: sqlite3.Cursor) -> None:
    """Let a copy become a store of its own when it is opened, if none of its runs can run."""
    if cursor.execute(SQL["has_identity"]).fetchone() == (0,):
        return
    is_copy, has_work = _look_for_copy(cursor)
    if is_copy and not has_work:
        adopt_file(cursor)


def check_for_worker(cursor: sqlite3.Cursor) -> None:
    """Refuse a worker on a copy that has runs that can run."""
    is_copy, _ = _look_for_copy(cursor)
    if is_copy:
        raise StoreRefused(
            "this file is a copy of a store, or a restored backup: its waiting runs may have run "
            "since the copy was made. Before workers start, run `duly restore --since WHEN`, where "
            "WHEN is the time of the copy; or `duly restore --nothing-ran` if all workers had "
            "stopped before it was copied and have not started again"
        )
    adopt_file(cursor)


def _look_for_copy(cursor: sqlite3.Cursor) -> tuple[bool, bool]:
    """Return whether the file is a copy of another one, and whether it has runs that can run."""
    known, has_work = cursor.execute(SQL["identity"]).fetchone()
    inode = _inode_of(cursor)
    return None not in {known, inode} and known != inode, bool(has_work)


def mark_as_copy(path: Path) -> None:
    """Mark a new file as a copy, wherever it is put later."""
    connection = sqlite3.connect(path)
    try:
        with connection:
            connection.execute(SQL["adopt_file"], {"inode": NO_INODE})
    finally:
        connection.close()


def close_for_good(connection: sqlite3.Connection, tables: tuple[str, ...], target: str) -> None:
    """Refuse every insert and update from now on, on every connection, after the store was moved.

    A claim is an update. So a worker that was frozen during the move cannot run a run twice.
    Deletes still work.
    """
    message = f"this store was moved to {target}; use that, and remove the file"
    quoted = message.replace("'", "''")
    for table, write in product(tables, ("insert", "update")):
        # A trigger takes no parameters. The names are constants of duly. A second move replaces the
        # trigger, so that the message names the new target.
        connection.execute(f"DROP TRIGGER IF EXISTS {table}_{write}_moved")
        connection.execute(
            f"CREATE TRIGGER {table}_{write}_moved BEFORE {write} ON {table} "
            f"BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
        )


def _inode_of(cursor: sqlite3.Cursor) -> int | None:
    """Return the inode of a connection's file; None for a database in memory."""
    _, _, file = cursor.execute("PRAGMA database_list").fetchone()
    return Path(file).stat().st_ino if file else None
