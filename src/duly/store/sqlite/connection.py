"""Opens and locks an SQLite file, and translates the driver's errors."""

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

from duly.errors import (
    DulyError,
    StoreBusy,
    StoreError,
    StoreFull,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
    WouldBlockItself,
)
from duly.store.private_files import check_private, open_private
from duly.store.refusal import ValueRefused
from duly.store.sqlite.busy_timeout import BUSY_SECONDS, is_busy
from duly.store.task_connection import BODY, OWN_TRANSACTION

OLDEST_SQLITE = (3, 35, 0)
_NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
)
_VALUE_CODES = frozenset(
    {sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_MISMATCH}
)
_FIXED_WAL = ((3, 51, 3), (3, 50, 7), (3, 44, 6))
"""The builds without the race between a checkpoint and a commit of another process."""
_BESIDE = ("", "-journal", "-wal", "-shm", "-duly.lock", "-duly.d")
"""The suffixes of the files that SQLite and duly keep next to a database."""


def check_place(path: Path) -> None:
    """Refuse a path where locks are not reliable, or where another user has left files."""
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        message = f"SQLite {sqlite3.sqlite_version} is too old; duly needs 3.35 or newer"
        raise StoreRefused(message)
    try:
        is_link, has_folder = path.is_symlink(), path.parent.is_dir()
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}; check the permissions of the folder"
        raise StoreReadOnly(message) from error
    if is_link:
        message = (
            f"{path} is a symbolic link; use the path of the file itself, so that its locks have "
            "one place"
        )
        raise StoreRefused(message)
    if not has_folder:
        message = f"the folder {path.parent} does not exist; create it, or choose another place"
        raise StoreRefused(message)
    kind = file_system_of(path.parent)
    if kind in _NETWORK_FILE_SYSTEMS or kind.startswith("fuse"):
        message = (
            f"{path} is on {kind}, where file locks are not reliable; use a local disk, or "
            "PostgreSQL when several machines share the work"
        )
        raise StoreRefused(message)
    check_owners(path)


def check_owners(path: Path) -> None:
    """Refuse the database if another user made or can change it or one of its files."""
    for suffix in _BESIDE:
        check_private(path.with_name(path.name + suffix))


def file_system_of(folder: Path) -> str:
    """Return the type of the file system that holds a folder; an empty text if it is unknown."""
    try:
        mounts = Path("/proc/self/mounts").read_text()
    except OSError:
        return ""
    place = str(folder.resolve())
    best, kind = "", ""
    for line in mounts.splitlines():
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def create_private(path: Path) -> bool:
    """Create the file with access for its owner only; return whether it was missing."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError as error:
        message = f"cannot create {path}: {error.strerror}; check the permissions of the folder"
        raise StoreReadOnly(message) from error
    return True


Kind = TypeVar("Kind", bound=sqlite3.Connection)


@overload
def connect(path: Path, *, seconds: float = BUSY_SECONDS) -> sqlite3.Connection: ...
@overload
def connect(path: Path, *, seconds: float, cached_statements: int, factory: type[Kind]) -> Kind: ...
def connect(
    path: Path,
    *,
    seconds: float = BUSY_SECONDS,
    cached_statements: int = 256,
    factory: type[Any] = sqlite3.Connection,
) -> Any:
    """Open the file with duly's settings. A statement waits up to `seconds` for a lock."""
    with driver_errors(path):
        connection = sqlite3.connect(
            path,
            timeout=seconds,
            isolation_level=None,
            check_same_thread=False,
            cached_statements=cached_statements,
            factory=factory,
        )
        try:
            # An accepted run is durable: with FULL every commit reaches the disk, in both journal
            # modes.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA temp_store = MEMORY")
            # Some builds of SQLite overwrite every page that a delete frees. A prune would then
            # write more than twice what it frees.
            connection.execute("PRAGMA secure_delete = FAST")
        except BaseException:
            # The close() of a task connection refuses, so the driver's own is called.
            sqlite3.Connection.close(connection)
            raise
    return connection


def wal_can_lose_commits() -> bool:
    """Return whether this SQLite build has the checkpoint race."""
    version = sqlite3.sqlite_version_info
    return not any(
        (version >= fixed and version[:2] == fixed[:2]) or version[:2] > (3, 51)
        for fixed in _FIXED_WAL
    )


@contextmanager
def driver_errors(path: Path) -> Iterator[None]:
    """Turn the driver's errors into duly's own, which describe the remedy."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated(error: sqlite3.Error, path: Path) -> DulyError:
    """Return duly's own error for an error of the driver."""
    code = getattr(error, "sqlite_errorcode", None)
    primary = code & 0xFF if code is not None else None
    if is_busy(error):
        return StoreBusy(
            f"{path} was locked by another connection for {BUSY_SECONDS:.0f} s ({error}); end the "
            "transaction that is still open there; if it is your own, enqueue in it with "
            "using(connection=…)"
        )
    if code == sqlite3.SQLITE_CONSTRAINT_TRIGGER:
        # Only the triggers of a moved store refuse a row.
        return StoreRefused(f"{path}: {error}")
    if primary in {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH}:
        return StoreReadOnly(f"{path} cannot be written ({error}); check its owner and permissions")
    if primary == sqlite3.SQLITE_FULL:
        return StoreFull(
            f"the disk of {path} is full ({error}); nothing was written; free disk space"
        )
    if primary == sqlite3.SQLITE_CANTOPEN:
        return StoreUnavailable(f"cannot open {path} ({error}); check the path and its permissions")
    if primary in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
        return StoreRefused(
            f"{path} is damaged or not a SQLite database ({error}); restore a backup"
        )
    if primary == sqlite3.SQLITE_IOERR:
        return StoreUnavailable(f"reading or writing {path} failed ({error}); check the disk")
    if primary == sqlite3.SQLITE_PROTOCOL:
        return StoreBusy(f"the locks of {path} are busy ({error}); try again")
    # The remaining errors (a constraint, a bug) would occur again, so they must not count as an
    # outage. An outage fails all callers that share the commit, not only the one that caused it.
    if primary in _VALUE_CODES:
        return ValueRefused(f"{path}: {error}")
    return StoreError(f"{path}: {error}")


class _LockHolder(NamedTuple):
    """The thread and the task body that have a lock for longer than one write."""

    thread: int
    body: object

    def is_caller(self) -> bool:
        """Return whether the caller is the holder, perhaps on another thread of the same body."""
        is_same_body = self.body is not None and self.body is BODY.get()
        return is_same_body or self.thread == threading.get_ident()


_holders: dict[tuple[int, int], _LockHolder] = {}
"""The holders by lock file. Several stores of a process may have it open, each with a lock."""


class WriteLock:
    """The lock that every write transaction of duly takes first, across threads and processes.

    SQLite is not fair to writers: one busy process can delay another's write for half a minute.
    A blocking `flock` queues the writers. It also separates the commits, checkpoints and closes of
    duly's own connections. This makes WAL safe on builds with the checkpoint race.
    """

    def __init__(self, path: Path) -> None:
        self.mutex = threading.Lock()
        """Taken first. In a `with`, no interrupt occurs between taking it and the block."""
        self._owner: int | None = None
        self.is_waiting = False
        """Whether a thread of this process waits for another process."""
        try:
            self._descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            message = f"cannot open {path}: {error.strerror}; check the permissions of the folder"
            raise StoreReadOnly(message) from error
        found = os.fstat(self._descriptor)
        self._place = found.st_dev, found.st_ino

    def acquire(self) -> None:
        """Wait for the lock. Raise WouldBlockItself if the caller already holds it."""
        self.refuse_owner()
        self.mutex.acquire()
        try:
            self.lock_file()
        except BaseException:
            self.unlock_file()
            self.mutex.release()
            raise
        _holders[self._place] = _LockHolder(threading.get_ident(), BODY.get())

    def lock_file(self) -> None:
        """Wait for other processes to release the lock file. The caller must hold the mutex."""
        self.is_waiting = True
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        finally:
            self.is_waiting = False
        self._owner = threading.get_ident()

    def unlock_file(self) -> None:
        """Unlock the file for other processes. Safe to call if the file was not locked."""
        self._owner = None
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_free(self) -> bool:
        """Return whether the lock is free now, in this process and in all others."""
        if not self.mutex.acquire(blocking=False):
            return False
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        except BlockingIOError:
            return False
        finally:
            self.mutex.release()
        return True

    def refuse_owner(self) -> None:
        """Raise WouldBlockItself if the caller holds the lock.

        Such a caller must not wait for the lock, nor for another thread that waits for it.
        """
        holder = _holders.get(self._place)
        if holder is not None and holder.is_caller():
            raise WouldBlockItself(OWN_TRANSACTION)

    def release(self) -> None:
        """Release the lock for the next writer."""
        _holders.pop(self._place, None)
        self.unlock_file()
        self.mutex.release()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock during a block."""
        self.acquire()
        try:
            yield
        finally:
            self.release()

    def quiesce(self, seconds: float) -> bool:
        """Keep this process's writers out. Return False if one of its threads keeps the lock."""
        if self._owner == threading.get_ident():
            return False
        return self.mutex.acquire(timeout=seconds)

    def resume(self) -> None:
        """Let this process's writers continue."""
        self.mutex.release()

    def close(self) -> None:
        """Close the lock's file; a second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
