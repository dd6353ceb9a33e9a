"""Behaviour of SQLite only: the place of the file, other processes that write it, and crashes.

None of this exists on PostgreSQL, where a server is responsible for files, locks and crashes.
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from duly.core.states import SlotKind
from duly.errors import StoreError, StoreFull, StoreReadOnly, StoreRefused, WouldBlockItself
from duly.store.ops.runs import Settled
from duly.store.ops.upkeep import Prune
from duly.store.sqlite import connection as connection_module
from duly.store.sqlite.connection import file_system_of, wal_can_lose_commits
from duly.store.sqlite.transaction import script
from duly.store.store_factory import open_store
from tests.store.conformance.verbs import (
    cancel,
    claim,
    enqueue_and_claim,
    enqueue_many,
    enqueue_one,
    listed_ids,
    order,
    register,
    success,
)
from tests.store.sqlite.verbs import BOTH_JOURNALS, REPOSITORY, TIMEOUT, closing_life, open_at

pytestmark = pytest.mark.stores("sqlite")


def mode_of(path):
    return path.stat().st_mode & 0o777


def journal_mode_of(path):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute("PRAGMA journal_mode").fetchone()[0]


# -- the place of the file --


def test_a_new_file_and_the_files_next_to_it_are_accessible_to_their_owner_only(tmp_path):
    file = tmp_path / "new.db"
    before = os.umask(0)
    try:
        with open_at(file) as store, closing_life(store):
            enqueue_one(store)
            modes = {entry.name: mode_of(entry) for entry in tmp_path.iterdir()}
            lives = [mode_of(entry) for entry in (tmp_path / "new.db-duly.d").iterdir()]
    finally:
        os.umask(before)

    assert modes == {
        "new.db": 0o600,
        "new.db-wal": 0o600,
        "new.db-shm": 0o600,
        "new.db-duly.lock": 0o600,
        "new.db-duly.d": 0o700,
    }
    assert lives == [0o600]


def test_a_symbolic_link_is_refused(tmp_path):
    (tmp_path / "real.db").touch()
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")

    with pytest.raises(StoreRefused, match="symbolic link"):
        open_store(f"sqlite:///{tmp_path / 'link.db'}")

    assert (tmp_path / "real.db").stat().st_size == 0


def test_a_missing_folder_is_refused(tmp_path):
    with pytest.raises(StoreRefused, match="does not exist"):
        open_store(f"sqlite:///{tmp_path / 'missing' / 'new.db'}")


def test_a_file_that_is_no_database_is_refused_and_not_changed(tmp_path):
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada, this is no database, whatever it is called. " * 100)
    before = file.read_bytes()

    with pytest.raises(StoreRefused, match="damaged or not a SQLite database"):
        open_store(f"sqlite:///{file}")

    assert file.read_bytes() == before


OPEN_WITHOUT_PRIVILEGES = """
import os, sys
from duly.errors import DulyError
from duly.store.store_factory import open_store
import duly.store.sqlite.store

if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    store = open_store(sys.argv[1])
    store.close()
except DulyError as error:
    print(type(error).__name__, error)
else:
    print("opened")
"""


@pytest.fixture
def open_folder():
    """A folder that every user may enter, unlike the folders of pytest."""
    with tempfile.TemporaryDirectory(prefix="duly-test-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def opened_without_privileges(file):
    """Open a store as a user to whom permissions apply. They do not apply to root."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN_WITHOUT_PRIVILEGES, f"sqlite:///{file}"],
        cwd=REPOSITORY,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
def test_a_folder_that_cannot_be_written_is_refused(open_folder):
    open_folder.chmod(0o555)

    said = opened_without_privileges(open_folder / "new.db")

    assert said.startswith("StoreReadOnly")
    assert "permissions" in said
    assert list(open_folder.iterdir()) == []


@pytest.mark.process
def test_a_file_in_a_folder_that_cannot_be_written_is_refused(open_folder):
    file = open_folder / "there.db"
    with open_at(file) as store:
        enqueue_one(store)
    for entry in open_folder.iterdir():
        entry.chmod(0o666)
    (open_folder / "there.db-duly.lock").unlink()
    open_folder.chmod(0o555)

    assert opened_without_privileges(file).startswith("StoreReadOnly")


@pytest.mark.process
def test_a_file_that_cannot_be_written_is_refused(open_folder):
    file = open_folder / "application.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE application_data (id)")
    file.chmod(0o444)
    open_folder.chmod(0o777)

    assert opened_without_privileges(file).startswith("StoreReadOnly")


@pytest.mark.process
def test_a_folder_that_cannot_be_entered_is_refused(open_folder):
    closed = open_folder / "closed"
    closed.mkdir(mode=0o000)

    try:
        said = opened_without_privileges(closed / "new.db")
    finally:
        closed.chmod(0o700)

    assert said.startswith(("StoreReadOnly", "StoreRefused"))


@pytest.mark.process
def test_a_user_without_privileges_may_use_a_folder_of_its_own(open_folder):
    """This shows that the tests above fail to open a store because of the permissions."""
    open_folder.chmod(0o777)

    assert opened_without_privileges(open_folder / "new.db") == "opened\n"


# -- file systems --


@pytest.fixture
def mounts(monkeypatch):
    """Let the system report these mounts instead of its own."""
    read_text = Path.read_text
    reported = []

    def read(self, *args, **kwargs):
        if str(self) == "/proc/self/mounts":
            return "".join(f"{line}\n" for line in reported)
        return read_text(self, *args, **kwargs)

    monkeypatch.setattr(connection_module.Path, "read_text", read)
    return reported


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph"])
def test_a_network_file_system_is_refused(tmp_path, mounts, kind):
    mounts += ["/dev/vda / ext4 rw 0 0", f"server:/share {tmp_path} {kind} rw 0 0"]

    with pytest.raises(StoreRefused, match=f"is on {kind}"):
        open_store(f"sqlite:///{tmp_path / 'new.db'}")

    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["/dev/vda / ext4 rw 0 0"], "ext4"),
        (["server:/share / nfs rw 0 0", "tmpfs {place} tmpfs rw 0 0"], "tmpfs"),
        (["/dev/vda / ext4 rw 0 0", "server:/share {place}x nfs rw 0 0"], "ext4"),
        (["/dev/vda / ext4 rw 0 0", "server:/share {place}/deeper nfs rw 0 0"], "ext4"),
        # The last mount over a place is the visible one.
        (["server:/share {place} nfs rw 0 0", "/dev/vda {place} xfs rw 0 0"], "xfs"),
        ([], ""),
    ],
)
def test_the_file_system_of_a_folder_is_that_of_its_innermost_mount(tmp_path, mounts, lines, kind):
    place = tmp_path.resolve()
    mounts += [line.format(place=place) for line in lines]

    assert file_system_of(tmp_path) == kind


def test_a_mount_point_with_spaces_is_recognized(tmp_path, mounts):
    folder = tmp_path / "my share"
    folder.mkdir()
    escaped = str(folder.resolve()).replace(" ", "\\040")
    mounts += ["/dev/vda / ext4 rw 0 0", f"server:/share {escaped} nfs4 rw 0 0"]

    assert file_system_of(folder) == "nfs4"


# -- the journal --


def test_a_file_that_duly_creates_is_put_into_wal_mode(tmp_path):
    with open_at(tmp_path / "own.db"):
        pass

    assert journal_mode_of(tmp_path / "own.db") == "wal"


def test_an_empty_file_counts_as_created_by_duly(tmp_path):
    (tmp_path / "empty.db").touch()

    with open_at(tmp_path / "empty.db"):
        pass

    assert journal_mode_of(tmp_path / "empty.db") == "wal"


@pytest.mark.parametrize("mode", ["delete", "wal"])
def test_an_applications_file_keeps_its_journal_mode_and_its_data(tmp_path, mode):
    file = tmp_path / "application.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE application_data (note)")
        connection.execute("INSERT INTO application_data VALUES ('mine')")

    with open_at(file) as store:
        enqueue_one(store)
    with open_at(file) as store:
        assert len(listed_ids(store)) == 1

    assert journal_mode_of(file) == mode
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT note FROM application_data").fetchall() == [("mine",)]


@pytest.mark.parametrize(
    ("mode", "version", "warned"),
    [
        ("wal", (3, 40, 1), True),
        ("wal", (3, 51, 3), False),
        ("delete", (3, 40, 1), False),
    ],
)
def test_a_warning_is_logged_for_an_applications_file_in_wal_mode_on_a_vulnerable_build(
    tmp_path, monkeypatch, mode, version, warned
):
    file = tmp_path / "application.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE application_data (note)")
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    with open_at(file) as store:
        assert bool(store.notices) == warned


@pytest.mark.parametrize(
    ("version", "vulnerable"),
    [
        ((3, 35, 0), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 52, 0), False),
        ((4, 0, 0), False),
    ],
)
def test_builds_that_can_lose_commits_in_wal_mode_are_recognized(monkeypatch, version, vulnerable):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)

    assert wal_can_lose_commits() == vulnerable


@BOTH_JOURNALS
def test_every_commit_is_flushed_to_the_disk(store):
    full = 2

    for connection in (store._process.writer, store._process.reader):
        assert connection.execute("PRAGMA synchronous").fetchone() == (full,)


def test_a_prune_does_not_overwrite_the_pages_that_it_frees(store):
    size = 200_000
    for _ in range(20):
        cancel(store, enqueue_one(store, arguments=json.dumps("x" * size)))
    before = _bytes_written()

    pruned = store.do(Prune(-1, 100))

    assert pruned.runs == 20
    assert _bytes_written() - before < 20 * size / 4


def _bytes_written():
    found = Path("/proc/self/io").read_text()
    return int(found.partition("wchar: ")[2].split()[0])


# -- a disk that is full --


@BOTH_JOURNALS
def test_a_full_disk_raises_an_error_and_leaves_nothing_half_written(store, tables):
    register(store)
    found = enqueue_and_claim(store)
    (pages,) = store._process.writer.execute("PRAGMA page_count").fetchone()
    store._process.writer.execute(f"PRAGMA max_page_count = {pages}")
    before = tables.everything()
    large = json.dumps([[], {"text": "x" * 100_000}])

    with pytest.raises(StoreFull, match="free disk space"):
        store.apply([order(arguments=large, key=f"key {n}", tags={"n": "1"}) for n in range(20)])

    assert tables.everything() == before
    assert tables.rows("PRAGMA integrity_check") == [("ok",)]
    store._process.writer.execute(f"PRAGMA max_page_count = {pages + 10_000}")
    assert store.apply([success(found)]) == [Settled.DONE]
    assert enqueue_one(store, arguments=large)


# -- one connection per transaction of a task --


def test_a_write_of_the_thread_that_holds_the_lock_is_refused_instead_of_blocking(store):
    section = store.task_transaction()
    section.connection.execute("SELECT 1")

    with pytest.raises(WouldBlockItself):
        enqueue_one(store)

    section.rollback()
    assert enqueue_one(store)


@BOTH_JOURNALS
def test_a_write_fails_soon_with_advice_if_the_callers_own_connection_holds_the_lock(store, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as own:
        own.execute("BEGIN IMMEDIATE")
        for act in (enqueue_one, register, open_section):
            began = time.monotonic()
            with pytest.raises(
                WouldBlockItself, match=r"using\(connection=…\).*another thread.*try again"
            ):
                act(store)
            assert time.monotonic() - began < 4  # The write gives up after two seconds.
        own.execute("ROLLBACK")

    assert enqueue_one(store)


def test_a_write_waits_for_transactions_of_its_process_that_commit(store, path):
    """The transactions follow each other, as those of another thread may for a while."""
    store._process.writer.execute("PRAGMA busy_timeout = 50")
    begun, ends = threading.Event(), threading.Event()

    def write_on() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("CREATE TABLE other (n)")
            while not ends.is_set():
                other.execute("BEGIN IMMEDIATE")
                other.execute("INSERT INTO other VALUES (1)")
                begun.set()
                time.sleep(0.03)
                other.execute("COMMIT")
                time.sleep(0.005)

    writing = threading.Thread(target=write_on)
    writing.start()
    try:
        assert begun.wait(20)
        for _ in range(10):
            assert enqueue_one(store)
    finally:
        ends.set()
        writing.join()


def test_a_write_waits_for_a_lock_of_another_process(store, path):
    store._process.writer.execute("PRAGMA busy_timeout = 10")
    script = (
        "import sqlite3, sys, time; own = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "own.execute('BEGIN IMMEDIATE'); print('held', flush=True); time.sleep(0.2);"
        "own.execute('ROLLBACK')"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout.readline() == b"held\n"
        assert enqueue_one(store)


def open_section(store) -> None:
    store.task_transaction().connection.execute("SELECT 1")


def test_settling_many_runs_takes_few_statements(store):
    register(store)
    enqueue_many(store, 200)
    claims = claim(store)
    statements = []
    store._process.writer.set_trace_callback(statements.append)

    answers = store.apply([success(found)._replace(keyed=False) for found in claims])

    store._process.writer.set_trace_callback(None)
    assert answers == [Settled.DONE] * 200
    assert len(statements) < 20


def test_a_store_is_not_closed_while_a_thread_reads(store_url):
    """Otherwise SQLite's library crashes the process."""
    store = open_store(store_url)
    reading, is_closed = store._process.reading, threading.Event()
    closing = threading.Thread(target=lambda: (store.close(), is_closed.set()))

    with reading:
        closing.start()
        is_early = is_closed.wait(0.3)
        store._process.reader.execute("SELECT 1")
    closing.join(20)

    assert not is_early
    assert is_closed.is_set()


def test_a_closed_store_raises_an_error(store_url):
    store = open_store(store_url)
    store.close()

    with pytest.raises(StoreError, match="closed"):
        enqueue_one(store)


def test_a_store_that_can_no_longer_be_written_raises_an_error(store):
    store._process.writer.execute("PRAGMA query_only = ON")

    with pytest.raises(StoreReadOnly):
        enqueue_one(store)


@pytest.mark.parametrize("lane", [SlotKind.THREAD, SlotKind.CARRIED])
def test_a_peek_costs_the_same_with_any_number_of_ready_runs(tmp_path, lane):
    with open_at(tmp_path / "duly.db") as store:
        enqueue_many(store, 5, lane=lane)
        few = _steps(store)
        enqueue_many(store, 2_000, lane=lane)

        assert _steps(store) <= few * 1.2


def _steps(store) -> int:
    """Count the steps of SQLite during one peek."""
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    (peek,) = script("inspect.peek")
    with closing(sqlite3.connect(store.path)) as connection:
        connection.set_progress_handler(count, 1)
        connection.execute(peek.sql, {"carried": "[]", "now": 0}).fetchall()
    return steps
