"""What is to be said of SQLite and of how it is set up."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from duly.core.finding import Finding, good, judged
from duly.store.sqlite.connection import file_system_of, wal_can_lose_commits
from duly.store.statements import load

SQL = load("duly.store.sqlite", "diagnose")

_FULL = 2
_PRIVATE = 0o077

Query = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]


def diagnose(query: Query, path: Path) -> list[Finding]:
    """Return what was found, good and bad."""
    ((version, journal, synchronous, others),) = query(SQL["facts"], {})
    can_lose = journal == "wal" and bool(others) and wal_can_lose_commits()
    shared = "with tables of the application" if others else "of duly alone"
    mode = path.stat().st_mode & 0o777
    return [
        judged(
            "engine",
            f"SQLite {version}, journal mode {journal}, a file {shared}",
            bad=can_lose,
            level="error",
            remedy="this build can lose commits in WAL mode when another program writes the file "
            "too: use SQLite 3.51.3 or newer, or PRAGMA journal_mode = DELETE",
        ),
        judged(
            "durability",
            "every commit reaches the disk (synchronous = FULL)",
            bad=synchronous < _FULL,
            level="error",
            remedy="something changed PRAGMA synchronous on duly's connection: leave it at FULL",
        ),
        good("file system", file_system_of(path.parent) or "unknown"),
        judged(
            "file mode",
            f"{path} has mode {mode:o}",
            bad=bool(mode & _PRIVATE),
            remedy=f"others on this machine can read arguments and results: chmod 600 {path}",
        ),
    ]
