"""Files that another user of the machine made, or can change, are refused.

PostgreSQL has no files of duly next to its address.
"""

import os
import socket
import stat
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from duly.errors import StoreRefused
from duly.store.sqlite import process_resources
from duly.store.sqlite.heartbeats import heartbeat_file_path
from duly.store.store_factory import open_store, runtime_folder
from duly.worker.start_marks import StartMarks
from tests.store.conformance.verbs import enqueue_one, state_of
from tests.store.sqlite.verbs import closing_life, open_at

pytestmark = pytest.mark.stores("sqlite")

STRANGER = 54_321
IN_SHARED_FOLDERS = pytest.mark.parametrize("mode", [0o1777, 0o777])
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other users")


@pytest.fixture
def shared(tmp_path):
    """A folder like /tmp: every user may create files in it."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def make_store(path):
    """Create a store and leave its file closed."""
    with open_at(path) as store, closing_life(store):
        enqueue_one(store)


def plant(path, *, folder=False):
    """Let another user create a file or a folder."""
    if folder:
        path.mkdir(exist_ok=True)
    else:
        path.touch()
    os.chown(path, STRANGER, STRANGER)


# -- owners --


@as_root
@IN_SHARED_FOLDERS
def test_a_strangers_database_in_a_shared_folder_is_refused(shared, mode):
    shared.chmod(mode)
    make_store(shared / "duly.db")
    os.chown(shared / "duly.db", STRANGER, STRANGER)
    before = (shared / "duly.db").read_bytes()

    # The advice must not be to close a folder that is open to all on purpose, like /tmp.
    remedy = "its own folder$" if mode & stat.S_ISVTX else "chmod o-w"
    with pytest.raises(StoreRefused, match=rf"duly\.db belongs to user {STRANGER}.*{remedy}"):
        open_store(f"sqlite:///{shared / 'duly.db'}")

    assert (shared / "duly.db").read_bytes() == before


@as_root
@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", "-duly.lock", "-duly.d"])
def test_a_strangers_file_next_to_the_database_is_refused(shared, suffix):
    make_store(shared / "duly.db")
    plant(shared / f"duly.db{suffix}", folder=suffix == "-duly.d")

    with pytest.raises(StoreRefused, match=rf"duly\.db{suffix} belongs to user {STRANGER}"):
        open_store(f"sqlite:///{shared / 'duly.db'}")


@as_root
@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_strangers_file_is_refused_before_a_database_is_created(shared, suffix):
    plant(shared / f"duly.db{suffix}")

    with pytest.raises(StoreRefused, match=f"user {STRANGER}"):
        open_store(f"sqlite:///{shared / 'duly.db'}")

    assert not (shared / "duly.db").exists()


@as_root
def test_a_file_planted_while_the_database_is_opened_is_refused(shared, monkeypatch):
    make_store(shared / "duly.db")
    connect = process_resources.connect

    def connect_late(path, **options):
        plant(shared / "duly.db-journal")
        return connect(path, **options)

    monkeypatch.setattr(process_resources, "connect", connect_late)

    with pytest.raises(StoreRefused, match=r"-journal belongs to user"):
        open_store(f"sqlite:///{shared / 'duly.db'}")


@as_root
def test_a_folder_that_a_stranger_made_in_a_shared_folder_is_refused(shared):
    plant(shared / "app", folder=True)

    with pytest.raises(StoreRefused, match=rf"shared/app belongs to user {STRANGER}"):
        open_store(f"sqlite:///{shared / 'app' / 'duly.db'}")


@as_root
def test_a_link_to_a_folder_that_a_stranger_made_in_a_shared_folder_is_refused(shared, tmp_path):
    (tmp_path / "real").mkdir()
    (shared / "app").symlink_to(tmp_path / "real")
    os.lchown(shared / "app", STRANGER, STRANGER)

    with pytest.raises(StoreRefused, match=rf"shared/app belongs to user {STRANGER}"):
        open_store(f"sqlite:///{shared / 'app' / 'duly.db'}")


@pytest.mark.parametrize("suffix", ["", "-duly.lock"])
def test_a_file_that_everybody_may_write_is_refused_in_a_shared_folder(shared, suffix):
    make_store(shared / "duly.db")
    file = shared / f"duly.db{suffix}"
    file.chmod(0o666)

    with pytest.raises(StoreRefused, match=f"chmod o-w {file}"):
        open_store(f"sqlite:///{shared / 'duly.db'}")

    file.chmod(0o660)
    open_store(f"sqlite:///{shared / 'duly.db'}").close()


@as_root
def test_a_volume_with_files_of_another_user_can_be_used(tmp_path):
    """The root user of a container may have made them. Only it may create files in the folder."""
    volume = tmp_path / "volume"
    volume.mkdir(mode=0o755)
    make_store(volume / "duly.db")
    for place in (volume, *volume.rglob("*")):
        os.chown(place, STRANGER, STRANGER)

    with open_at(volume / "duly.db") as store:
        assert state_of(store, enqueue_one(store)) == "queued"


def test_own_files_in_a_shared_folder_can_be_used(shared):
    make_store(shared / "duly.db")

    with open_at(shared / "duly.db") as store:
        assert state_of(store, enqueue_one(store)) == "queued"


@as_root
def test_root_trusts_the_user_who_called_sudo(shared, monkeypatch):
    make_store(shared / "duly.db")
    os.chown(shared / "duly.db", STRANGER, STRANGER)
    monkeypatch.setenv("SUDO_UID", str(STRANGER))

    with open_at(shared / "duly.db") as store:
        assert state_of(store, enqueue_one(store)) == "queued"


# -- links --


@pytest.mark.parametrize("suffix", ["-duly.lock", "-wal", "-shm", "-journal", "-duly.d"])
def test_a_link_in_the_place_of_a_file_is_refused(tmp_path, suffix):
    make_store(tmp_path / "duly.db")
    target = tmp_path / "target"
    (tmp_path / "duly.db-duly.d").rmdir()
    (tmp_path / "duly.db-duly.lock").unlink()
    (tmp_path / f"duly.db{suffix}").symlink_to(target)

    with pytest.raises(StoreRefused, match=rf"duly\.db{suffix} is a symbolic link"):
        open_store(f"sqlite:///{tmp_path / 'duly.db'}")

    assert not target.exists()


def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "duly.db-duly.lock")

    with pytest.raises(StoreRefused, match=r"duly\.lock is not a regular file"):
        open_store(f"sqlite:///{tmp_path / 'duly.db'}")


def test_a_link_in_the_place_of_a_life_file_is_not_followed(tmp_path):
    with open_at(tmp_path / "duly.db") as store:
        store.folder.mkdir()
        precious = tmp_path / "precious"
        precious.write_bytes(b"x" * 64)
        heartbeat_file_path(store.folder, "ann").symlink_to(precious)

        with pytest.raises(StoreRefused, match="symbolic link"):
            store.live("ann")
        pulse = store.heartbeats()
        assert pulse.beat(["ann"]) == set()
        assert pulse.refuse_beats("ann", 0) is True

    assert precious.read_bytes() == b"x" * 64


@pytest.mark.parametrize("create", [0, 8])
def test_a_link_in_the_place_of_a_slots_file_is_not_followed(tmp_path, create):
    precious = tmp_path / "precious"
    precious.write_bytes(b"x" * 640)
    (tmp_path / "ann.slots").symlink_to(precious)

    with pytest.raises(OSError, match=r"ann\.slots"):
        StartMarks(tmp_path / "ann.slots", create=create)

    assert precious.read_bytes() == b"x" * 640


def test_sending_hints_removes_no_sockets_in_a_linked_folder(tmp_path):
    """A socket that accepts no hint is removed, because its process is gone."""
    elsewhere = tmp_path / "run"
    elsewhere.mkdir()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as server:
        server.bind(str(elsewhere / "daemon.sock"))
        with open_at(tmp_path / "duly.db") as store:
            store.folder.symlink_to(elsewhere)

            enqueue_one(store)

    assert (elsewhere / "daemon.sock").exists()


@as_root
def test_hints_are_not_sent_into_a_strangers_folder(shared):
    with open_at(shared / "duly.db") as store:
        plant(store.folder, folder=True)
        (store.folder / "gone.sock").touch()

        enqueue_one(store)

        assert (store.folder / "gone.sock").exists()
        with pytest.raises(StoreRefused, match=f"user {STRANGER}"):
            store.listen(lambda: None)
        with pytest.raises(StoreRefused, match=f"user {STRANGER}"):
            store.live("ann")


# -- the folder for files that the workers of this host share --


def test_a_link_in_the_place_of_the_hosts_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / f"duly-{os.getuid()}").symlink_to(mine)

    with pytest.raises(StoreRefused, match="symbolic link"):
        runtime_folder(object())


def test_a_hosts_folder_that_everybody_may_write_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = runtime_folder(object())
    assert folder == Path(tmp_path / f"duly-{os.getuid()}")
    folder.chmod(0o777)

    with pytest.raises(StoreRefused, match=f"chmod 700 {folder}"):
        runtime_folder(object())


@as_root
def test_a_strangers_hosts_folder_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plant(tmp_path / f"duly-{os.getuid()}", folder=True)

    with pytest.raises(StoreRefused, match=f"belongs to user {STRANGER}"):
        runtime_folder(object())
