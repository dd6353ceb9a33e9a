"""Checks SQLite and its settings, checks the file's integrity, and writes backups."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from duly.core.diagnosis import Diagnosis, diagnosis_of, healthy
from duly.errors import StoreRefused
from duly.file_owners import is_open_to_all
from duly.store.sqlite.connection import check_owners, file_system_of, wal_can_lose_commits
from duly.store.sqlite.file_identity import mark_as_copy
from duly.store.statements import load

SQL = load("sqlite", "diagnose")

_FULL = 2
_PRIVATE = 0o077

Query = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]


def diagnose(query: Query, path: Path) -> list[Diagnosis]:
    """Return all findings, good and bad."""
    ((version, journal, synchronous, others),) = query(SQL["facts"], {})
    can_lose = journal == "wal" and bool(others) and wal_can_lose_commits()
    shared = "with tables of the application" if others else "used by duly alone"
    mode, folder = path.stat().st_mode & 0o777, path.parent.stat()
    return [
        diagnosis_of(
            "engine",
            f"SQLite {version}, journal mode {journal}, a file {shared}",
            bad=can_lose,
            level="error",
            remedy="this version of SQLite can lose commits in WAL mode when another program "
            "writes to the file too: use SQLite 3.51.3 or newer, or PRAGMA journal_mode = DELETE",
        ),
        diagnosis_of(
            "durability",
            "every commit reaches the disk (synchronous = FULL)",
            bad=synchronous < _FULL,
            level="error",
            remedy="PRAGMA synchronous was changed on duly's connection: leave it at FULL",
        ),
        healthy("file system", file_system_of(path.parent) or "unknown"),
        diagnosis_of(
            "file mode",
            f"{path} has mode {mode:o}",
            bad=bool(mode & _PRIVATE),
            remedy=f"other users of this machine can read arguments and results: chmod 600 {path}",
        ),
        diagnosis_of(
            "folder",
            f"{path.parent} has mode {folder.st_mode & 0o777:o}",
            bad=is_open_to_all(folder),
            remedy="every user of this machine can put files next to the database, which SQLite "
            f"reads: chmod o-w {path.parent}, or move the database to its own folder",
        ),
    ]


def check_integrity(query: Query) -> list[Diagnosis]:
    """Return the result of SQLite's integrity check, which reads the whole file."""
    problems = [str(row[0]) for row in query("PRAGMA integrity_check", {})]
    if problems == ["ok"]:
        return [healthy("integrity", "every page, row and index entry of the file is intact")]
    remedy = (
        "stop all workers, copy the file to a safe place, and restore a backup: see `duly restore`"
    )
    return [Diagnosis("integrity", "error", problem, remedy) for problem in problems]


def back_up(query: Query, file: Path) -> None:
    """Write a copy of one moment with access for its owner only, and make it durable."""
    check_owners(file)
    if file.exists():
        raise StoreRefused(f"{file} already exists; choose a new file name")
    # The file is created here, because SQLite would make it readable for other users. SQLite
    # accepts an empty file.
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreRefused(f"{file} cannot be written: {error.strerror}") from error
    try:
        query("VACUUM INTO :file", {"file": str(file)})
        mark_as_copy(file)
        for place in (file, file.parent):
            descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(descriptor)
            os.close(descriptor)
    except BaseException:
        file.unlink()
        raise
