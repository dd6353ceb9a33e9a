"""If a file cannot be used, the error leaves no connection and no descriptor open."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from duly.errors import StoreError, StoreUnavailable
from duly.store.sqlite import busy_timeout, task_transaction
from duly.store.sqlite import connection as connections
from duly.store.sqlite.store import SqliteStore


def descriptors_of(path: Path) -> list[str]:
    """Return the files of a store that this process has open."""
    found = []
    for place in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The descriptor with which the folder is listed.
            name = str(place.readlink())
            if name.startswith(str(path)):
                found.append(name)
    return found


def test_a_file_that_is_no_database_is_closed_again(tmp_path):
    path = tmp_path / "runs.db"
    path.write_bytes(b"not a database" * 1000)

    with pytest.raises(StoreError):
        SqliteStore(path)

    assert descriptors_of(path) == []


def test_a_file_is_closed_again_if_its_settings_cannot_be_made(tmp_path):
    path = tmp_path / "runs.db"

    class Refusing(sqlite3.Connection):
        def execute(self, *_):
            raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(StoreError):
        connections.connect(path, seconds=1.0, cached_statements=0, factory=Refusing)

    assert descriptors_of(path) == []


def test_a_transaction_that_cannot_begin_closes_its_connection(tmp_path, monkeypatch):
    path = tmp_path / "runs.db"
    monkeypatch.setattr(busy_timeout, "_LOOKS", 1)
    monkeypatch.setattr(task_transaction, "LOOK_SECONDS", 0.05)
    with closing(SqliteStore(path)) as store, closing(sqlite3.connect(path)) as other:
        other.execute("BEGIN IMMEDIATE")
        # SQLite keeps the file open while other connections have locks on it.
        log = path.with_name("runs.db-wal")
        before = len(descriptors_of(log))
        section = store.task_transaction()

        with pytest.raises(StoreUnavailable):
            _ = section.connection

        assert len(descriptors_of(log)) == before
