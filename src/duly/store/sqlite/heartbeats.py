"""Heartbeats of workers, without a write to the data file.

Each worker process has a small file, which it keeps locked for its whole life. The file contains
the counter of its heartbeats. If the lock is free, the worker is dead. If the counter does not
change, the worker is frozen, unless the kernel shows that the process with the lock is not stopped.

On Linux the lock belongs to the open file (`F_OFD_SETLK`). A record lock (`lockf`) would end as
soon as any code of the process opens and closes the file, such as a task that copies the folder. A
forked child shares the open file, so it closes the file at once.
"""

import fcntl
import os
import struct
import sys
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from duly.clock import MICROSECONDS, SystemClock
from duly.errors import StoreRefused
from duly.store.heartbeats import HeartbeatReading
from duly.store.private_files import open_private

_COUNTER_BYTES = 8
_CONDEMNED = b"\x01"
_HAS_FILE_LOCKS = sys.platform == "linux" and sys.maxsize > 2**32
_WHOLE_FILE = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
"""`struct flock` of Linux with 64 bits: type, whence, start, length, process."""
_HOLDER = struct.Struct("<qq")
_HOLDER_AT = 16
"""The offset of the holder in the file: its process id, and the namespace of that id."""
_NO_FILE = (FileNotFoundError, StoreRefused)
"""StoreRefused is included because a link at the file's path does not belong to the worker."""
_STOPPED_STATES = frozenset("Tt")
_CGROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


class FileLivenessHandle:
    """The lock of a worker's process on its file. The kernel releases it when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        _lock(descriptor, waits=True)
        os.pwrite(descriptor, _HOLDER.pack(os.getpid(), _pid_namespace()), _HOLDER_AT)
        _held_here[path] = descriptor

    def end(self) -> None:
        """Release the lock and remove the file. Do nothing in a forked child, which has neither."""
        descriptor = _held_here.pop(self._path, None)
        if descriptor is not None:
            self._path.unlink(missing_ok=True)
            os.close(descriptor)


class FileHeartbeats:
    """Records heartbeats of workers in their files, and reads those of other processes' workers."""

    def __init__(self, folder: Path, live_workers: Callable[[], list[tuple[str, float]]]) -> None:
        self._folder = folder
        self._live_workers = live_workers
        self._clock = SystemClock()
        self._counters: dict[str, tuple[int, int]] = {}
        self._mutex = threading.Lock()

    def beat(self, worker_ids: Sequence[str]) -> set[str]:
        """Record a heartbeat for each worker. Return those that recovery has not ended."""
        with self._mutex:
            return {worker_id for worker_id in worker_ids if self._beat_one(worker_id)}

    def read(self) -> dict[str, HeartbeatReading]:
        """Read the heartbeats of other processes' live workers."""
        return {
            worker_id: self._read_one(heartbeat_file_path(self._folder, worker_id))._replace(
                lease=lease
            )
            for worker_id, lease in self._live_workers()
            # If a lock belongs to the process, opening and closing its file would release the lock.
            if heartbeat_file_path(self._folder, worker_id) not in _held_here
        }

    def is_watcher(self, worker_ids: Collection[str], within: float) -> bool:  # noqa: ARG002
        """Return True. All workers are on one machine, so they are few."""
        return True

    def refuse_beats(self, worker_id: str, beats: int) -> bool:
        """Set a flag, then read the counter. A heartbeat does the same in the opposite order.

        So this method sees the count of an earlier heartbeat, and a later heartbeat sees the flag.
        """
        path = heartbeat_file_path(self._folder, worker_id)
        if path in _held_here:
            return False
        try:
            descriptor = open_private(path, os.O_RDWR)
        except _NO_FILE:
            return True
        try:
            os.pwrite(descriptor, _CONDEMNED, _COUNTER_BYTES)
            return int.from_bytes(os.pread(descriptor, _COUNTER_BYTES, 0), "little") == beats
        finally:
            os.close(descriptor)

    def forget(self, worker_id: str) -> None:
        """Remove a dead worker's file, and record no more heartbeats for it."""
        path = heartbeat_file_path(self._folder, worker_id)
        path.unlink(missing_ok=True)
        with self._mutex:
            # As above: closing the file might release the lock that this process still holds.
            if worker_id in self._counters and path not in _held_here:
                os.close(self._counters.pop(worker_id)[0])

    def seen_at(self, worker_id: str) -> int | None:
        """Return the time of the worker's last heartbeat, for display."""
        try:
            return heartbeat_file_path(self._folder, worker_id).stat().st_mtime_ns // 1_000
        except FileNotFoundError:
            return None

    def _beat_one(self, worker_id: str) -> bool:
        descriptor, counter = self._counters.get(worker_id, (-1, 0))
        if descriptor < 0:
            try:
                path = heartbeat_file_path(self._folder, worker_id)
                descriptor = open_private(path, os.O_RDWR)
            except _NO_FILE:
                return False
        counter += 1
        os.pwrite(descriptor, counter.to_bytes(_COUNTER_BYTES, "little"), 0)
        self._counters[worker_id] = (descriptor, counter)
        is_condemned = os.pread(descriptor, 1, _COUNTER_BYTES) == _CONDEMNED
        return not is_condemned and os.fstat(descriptor).st_nlink > 0

    def _read_one(self, path: Path) -> HeartbeatReading:
        try:
            descriptor = open_private(path, os.O_RDWR)
        except _NO_FILE:
            return HeartbeatReading(None)
        try:
            _lock(descriptor, waits=False)
        except OSError:
            holder = _holder_of(descriptor)
            if _is_gone(holder):
                # A child that it forked still has the file open.
                return HeartbeatReading(None)
            beats = int.from_bytes(os.pread(descriptor, _COUNTER_BYTES, 0), "little")
            seen_at = os.fstat(descriptor).st_mtime_ns // 1_000
            age = (self._clock.now() - seen_at) / MICROSECONDS
            return HeartbeatReading(beats, age, _is_running(holder))
        else:
            return HeartbeatReading(None)
        finally:
            os.close(descriptor)


def _lock(descriptor: int, *, waits: bool) -> None:
    """Lock a file. Raise OSError if it is locked and `waits` is false."""
    if _HAS_FILE_LOCKS:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK, _WHOLE_FILE)
    else:
        fcntl.lockf(descriptor, fcntl.LOCK_EX if waits else fcntl.LOCK_EX | fcntl.LOCK_NB)


def _pid_namespace() -> int:
    """Return the id of this container's process namespace; 0 if it is unknown."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116 - a link that leads nowhere
    except OSError:
        return 0


def _holder_of(descriptor: int) -> int | None:
    """Return the id of the process that has locked a file; None if it is not known here."""
    written = os.pread(descriptor, _HOLDER.size, _HOLDER_AT)
    pid, namespace = _HOLDER.unpack(written) if len(written) == _HOLDER.size else (0, 0)
    return pid if pid > 0 and namespace == _pid_namespace() != 0 else None


def _is_gone(holder: int | None) -> bool:
    """Return whether a process has ended; False if that is not known."""
    if holder is None:
        return False
    try:
        os.kill(holder, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def _is_running(pid: int | None) -> bool:
    """Return whether the kernel shows that a process is running; False if that is not known."""
    if pid is None:
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
        cgroups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False
    # The command's name comes second, in parentheses, and may contain any character.
    state = status.rpartition(")")[2].split()[0]
    return state not in _STOPPED_STATES and not _is_frozen(cgroups)


def _is_frozen(cgroups: str) -> bool:
    """Return whether the control group of a process is frozen, as by `systemctl freeze`.

    The state of the process does not show this, since a frozen process appears to sleep.
    """
    group = next((line[3:] for line in cgroups.splitlines() if line.startswith("0::")), None)
    for root in _CGROUP_ROOTS if group is not None else ():
        with suppress(OSError):
            return "frozen 1" in Path(f"{root}{group}/cgroup.events").read_text()
    return False


_held_here: dict[Path, int] = {}
"""The heartbeat files of this process's workers, with their descriptors."""


def _close_inherited() -> None:
    for descriptor in _held_here.values():
        os.close(descriptor)
    _held_here.clear()


os.register_at_fork(after_in_child=_close_inherited)


def heartbeat_file_path(folder: Path, worker_id: str) -> Path:
    """Return the path of a worker's heartbeat file."""
    return folder / f"{worker_id}.life"
