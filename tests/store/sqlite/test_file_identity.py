"""Files that are replaced, copied or moved are noticed before they are used.

A database of PostgreSQL is not a file, so none of this can happen there.
"""

import os
import shutil
import sqlite3
from contextlib import closing

import pytest

from duly.errors import StoreRefused
from duly.store.ops.operators import InterruptRestored
from duly.store.sqlite import file_identity
from duly.store.sqlite.transfer import reading
from tests.store.conformance.verbs import (
    OTHER_WORKER,
    claim,
    enqueue_one,
    listed_ids,
    order,
    register,
    success,
)
from tests.store.sqlite.verbs import BOTH_JOURNALS, open_at

pytestmark = [pytest.mark.stores("sqlite"), BOTH_JOURNALS]


def copy_of(path, store):
    """Copy a file with its log, as a user does who copies all of its parts."""
    copy = path.with_name("copy.db")
    with store.writing_alone():
        for suffix in ("", "-wal"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                shutil.copyfile(part, copy.with_name(copy.name + suffix))
    return copy


@pytest.mark.parametrize("replace", [os.replace, lambda _new, path: path.unlink()])
def test_a_file_that_was_replaced_or_removed_accepts_no_more_writes(
    store, path, replace, monkeypatch
):
    enqueue_one(store)
    new = path.with_name("new.db")
    shutil.copyfile(path, new)
    replace(new, path)
    later = file_identity.monotonic() + file_identity.CHECK_SECONDS
    monkeypatch.setattr(file_identity, "monotonic", lambda: later)

    with pytest.raises(StoreRefused, match="was replaced or removed"):
        enqueue_one(store)
    with pytest.raises(StoreRefused, match="was replaced or removed"):
        store.apply([order(), order()])
    with pytest.raises(StoreRefused, match="was replaced or removed"):
        listed_ids(store)


def test_a_worker_does_not_start_on_a_copy_that_has_runs_in_it(store, path):
    register(store)
    enqueue_one(store)
    copy = copy_of(path, store)

    with open_at(copy) as other:
        with pytest.raises(StoreRefused, match="duly restore --since"):
            register(other, OTHER_WORKER)
        assert claim(other, 1, worker=OTHER_WORKER) == []
    assert len(claim(store, 1)) == 1


def test_a_worker_starts_on_a_copy_that_was_restored(store, path):
    register(store)
    enqueue_one(store)
    copy = copy_of(path, store)

    with open_at(copy) as other:
        aside = other.do(InterruptRestored(other.now(), "ann", "restored", 100))
        register(other)

        assert aside.runs == 1
        assert claim(other, 1) == []


def test_a_worker_starts_on_a_copy_without_live_runs(store, path):
    register(store)
    enqueue_one(store)
    store.do(success(*claim(store, 1)))
    copy = copy_of(path, store)

    with open_at(copy) as other:
        register(other)
        enqueue_one(other)

        assert len(claim(other, 1)) == 1


def test_a_backup_that_replaces_the_file_is_noticed(path):
    backup = path.with_name("backup.db")
    with open_at(path) as store:
        register(store)
        enqueue_one(store)
        store.back_up(backup)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    shutil.copyfile(backup, path)

    with open_at(path) as again, pytest.raises(StoreRefused, match="restored backup"):
        register(again)


def test_a_file_that_was_moved_accepts_no_writes_on_any_connection(store, path):
    enqueue_one(store)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("SELECT count(*) FROM duly_runs").fetchone()
        with reading(store) as everything:
            everything.close_for_good("postgresql://host/it's")

        with pytest.raises(StoreRefused, match="moved to postgresql://host/it's"):
            enqueue_one(store)
        with pytest.raises(StoreRefused, match="moved to"):
            register(store)
        with pytest.raises(sqlite3.IntegrityError, match="moved to"):
            connection.execute("INSERT INTO duly_events (name) VALUES ('paid')")
    assert len(listed_ids(store)) == 1


def test_a_worker_that_was_frozen_while_its_file_was_moved_claims_nothing(store, path):
    register(store)
    enqueue_one(store)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE duly_workers SET seen_at = 0")
    with reading(store) as everything:
        everything.close_for_good("postgresql://host/new")

    with pytest.raises(StoreRefused, match="moved to"):
        claim(store)
