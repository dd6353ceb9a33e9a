"""Who lives, without a write to the data file.

Each worker process holds a lock on a small file of its own for its whole life; the file carries
its beat counter. A lock that can be taken means dead now; an unmoved counter means frozen, unless
the kernel shows that the process which holds the lock is not stopped. These are record locks
(`lockf`): a forked child does not inherit them, so they end with the very process.
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
from duly.store.liveness import Reading

_COUNTER_BYTES = 8
_CONDEMNED = b"\x01"
_FLOCK = struct.Struct("hhqqi4x")
"""`struct flock` of Linux: type, whence, start, length, process."""
_STOPPED_STATES = frozenset("Tt")
_CGROUP_ROOTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")


class Life:
    """Held by the process that is the worker; the kernel lets go when the process ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.lockf(self._descriptor, fcntl.LOCK_EX)
        _held_here.add(path)

    def end(self) -> None:
        """Give up the lock and remove the file."""
        self._path.unlink(missing_ok=True)
        _held_here.discard(self._path)
        os.close(self._descriptor)


class FilePulse:
    """Beats for workers and watches others', by their files."""

    def __init__(self, folder: Path, live_workers: Callable[[], list[tuple[str, float]]]) -> None:
        self._folder = folder
        self._live_workers = live_workers
        self._clock = SystemClock()
        self._counters: dict[str, tuple[int, int]] = {}
        self._mutex = threading.Lock()

    def beat(self, worker_ids: Sequence[str]) -> set[str]:
        """Count one beat for each; a file that recovery removed beats for nobody."""
        with self._mutex:
            return {worker_id for worker_id in worker_ids if self._beat_one(worker_id)}

    def read(self) -> dict[str, Reading]:
        """Look at other processes' live workers."""
        return {
            worker_id: self._read_one(life_path(self._folder, worker_id))._replace(lease=lease)
            for worker_id, lease in self._live_workers()
            # Opening and closing a file whose lock this very process holds would drop the lock.
            if life_path(self._folder, worker_id) not in _held_here
        }

    def is_watcher(self, worker_ids: Collection[str], within: float) -> bool:  # noqa: ARG002
        """Return True: all workers are on one machine, so they are few."""
        return True

    def condemn(self, worker_id: str, beats: int) -> bool:
        """Set a flag, then look at the counter: a beat counts first, then looks at the flag.

        So a beat that came before is seen here, and one that comes later sees the flag.
        """
        path = life_path(self._folder, worker_id)
        if path in _held_here:
            return False
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            os.pwrite(descriptor, _CONDEMNED, _COUNTER_BYTES)
            return int.from_bytes(os.pread(descriptor, _COUNTER_BYTES, 0), "little") == beats
        finally:
            os.close(descriptor)

    def forget(self, worker_id: str) -> None:
        """Remove a dead worker's file, and beat for it no more."""
        path = life_path(self._folder, worker_id)
        path.unlink(missing_ok=True)
        with self._mutex:
            # Closing it would drop the lock that this very process may still hold on it.
            if worker_id in self._counters and path not in _held_here:
                os.close(self._counters.pop(worker_id)[0])

    def seen_at(self, worker_id: str) -> int | None:
        """Return when the worker beat last, for people to look at."""
        try:
            return life_path(self._folder, worker_id).stat().st_mtime_ns // 1_000
        except FileNotFoundError:
            return None

    def _beat_one(self, worker_id: str) -> bool:
        descriptor, counter = self._counters.get(worker_id, (-1, 0))
        if descriptor < 0:
            try:
                path = life_path(self._folder, worker_id)
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except FileNotFoundError:
                return False
        counter += 1
        os.pwrite(descriptor, counter.to_bytes(_COUNTER_BYTES, "little"), 0)
        self._counters[worker_id] = (descriptor, counter)
        is_condemned = os.pread(descriptor, 1, _COUNTER_BYTES) == _CONDEMNED
        return not is_condemned and os.fstat(descriptor).st_nlink > 0

    def _read_one(self, path: Path) -> Reading:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return Reading(None)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            beats = int.from_bytes(os.pread(descriptor, _COUNTER_BYTES, 0), "little")
            seen_at = os.fstat(descriptor).st_mtime_ns // 1_000
            age = (self._clock.now() - seen_at) / MICROSECONDS
            return Reading(beats, age, _is_holder_running(descriptor))
        else:
            return Reading(None)
        finally:
            os.close(descriptor)


def _is_holder_running(descriptor: int) -> bool:
    """Return whether the process that has locked a file is seen to run; False if unknown."""
    if not sys.platform.startswith("linux"):
        return False
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    if kind == fcntl.F_UNLCK or pid <= 0:
        # Nobody holds it any more, or a process of another namespace does, which we cannot see.
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

    The state of the process itself does not tell: it seems to sleep.
    """
    group = next((line[3:] for line in cgroups.splitlines() if line.startswith("0::")), None)
    for root in _CGROUP_ROOTS if group is not None else ():
        with suppress(OSError):
            return "frozen 1" in Path(f"{root}{group}/cgroup.events").read_text()
    return False


_held_here: set[Path] = set()
os.register_at_fork(after_in_child=_held_here.clear)


def life_path(folder: Path, worker_id: str) -> Path:
    """Return the place of a worker's life file."""
    return folder / f"{worker_id}.life"
