"""Memory shared between a worker process and its keeper.

The keeper publishes the worker's deadline here; the worker marks every start before the body's
first instruction. When the worker is dead, the marks tell what had started and what had not. The
file carries the boot id: marks from before a power loss may be incomplete and are not believed.
"""

import contextlib
import fcntl
import mmap
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from duly.clock import boot_id

_MAGIC = b"duly-2\x00\x00"
_HEADER = struct.Struct("=8s16sddQdQ")
_FLAG = struct.Struct("=Q")
_REGISTERED_AT, _SUSPECT_AT, _CLAIMED_AT, _TAKEN_AT, _DRAINED_AT = 40, 56, 64, 72, 80
# Places in the header when it is read as numbers of eight bytes.
_DEADLINE, _ATTENDED, _BEATS_SINCE, _DRAINED = 3, 4, 6, 11
_HEADER_BYTES = 128
_GAVE_UP = 2
_SLOT = struct.Struct("=36sQddB")
_pack_slot = _SLOT.pack_into
_SLOT_BYTES = 64
_STATE_AT = 60

FREE, STARTED, ENDED = 0, 1, 2


class StartMark(NamedTuple):
    """One started run, as its worker left it."""

    run_id: str
    claim_number: int
    overdue_at: float
    """Monotonic; infinity without a timeout."""
    retry_after: float
    """What a timeout means here: seconds until the next try, negative for no retry left."""
    ended: bool


class StartMarks:
    """A file of marks, mapped into memory."""

    def __init__(self, path: Path, *, create: int = 0) -> None:
        """Map the file; `create` makes a new one with room for that many marks."""
        self.path = path
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        flags |= os.O_CREAT | os.O_EXCL if create else 0
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                # Space that is only promised would be missing once the disk is full, and the kernel
                # kills who writes there.
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(bytes(_HEADER_BYTES + create * _SLOT_BYTES))
            self._memory = mmap.mmap(descriptor, 0)
        except OSError:
            if create:
                self.remove()
            raise
        finally:
            os.close(descriptor)
        self.count = (len(self._memory) - _HEADER_BYTES) // _SLOT_BYTES
        self._times = memoryview(self._memory)[:_HEADER_BYTES].cast("d")
        if create:
            _HEADER.pack_into(self._memory, 0, _MAGIC, boot_id(), 0.0, 0.0, 0, -1.0, 0)

    @property
    def deadline(self) -> float:
        """Until when (monotonic) the worker may claim, start and settle."""
        return self._times[_DEADLINE]

    @deadline.setter
    def deadline(self, value: float) -> None:
        self._times[_DEADLINE] = value

    @property
    def attended_at(self) -> float:
        """When (monotonic) the keeper last was there to beat, whether the store answered or not."""
        return self._times[_ATTENDED]

    @attended_at.setter
    def attended_at(self, value: float) -> None:
        self._times[_ATTENDED] = value

    @property
    def beats_since(self) -> float | None:
        """Since when (monotonic) all beats for this worker have succeeded; None if not."""
        since = self._times[_BEATS_SINCE]
        return since if since >= 0 else None

    @beats_since.setter
    def beats_since(self, value: float | None) -> None:
        self._times[_BEATS_SINCE] = -1.0 if value is None else value

    @property
    def registered(self) -> bool:
        """Whether the worker is known to the store."""
        return bool(_FLAG.unpack_from(self._memory, _REGISTERED_AT)[0])

    @registered.setter
    def registered(self, value: bool) -> None:
        _FLAG.pack_into(self._memory, _REGISTERED_AT, value)

    @property
    def needs_renewal(self) -> bool:
        """Whether the lease must be renewed: the worker is registered and has not given up."""
        return self.registered and not self.gave_up

    @property
    def gave_up(self) -> bool:
        """Whether the worker has given up, since only its beats reach the store."""
        return bool(_FLAG.unpack_from(self._memory, _REGISTERED_AT)[0] == _GAVE_UP)

    def give_up(self) -> None:
        """Note that the worker gives up: its lease must not be renewed."""
        _FLAG.pack_into(self._memory, _REGISTERED_AT, _GAVE_UP)

    @property
    def saw_suspect(self) -> bool:
        """Whether the worker, when it last looked, saw a run that waits for a one-slot child."""
        return bool(_FLAG.unpack_from(self._memory, _SUSPECT_AT)[0])

    @saw_suspect.setter
    def saw_suspect(self, value: bool) -> None:
        _FLAG.pack_into(self._memory, _SUSPECT_AT, value)

    @property
    def claimed(self) -> int:
        """How many runs the worker has claimed to run them."""
        return int(_FLAG.unpack_from(self._memory, _CLAIMED_AT)[0])

    @claimed.setter
    def claimed(self, value: int) -> None:
        _FLAG.pack_into(self._memory, _CLAIMED_AT, value)

    @property
    def taken(self) -> int:
        """How many runs the worker has claimed, and one more while a claim is under way."""
        return int(_FLAG.unpack_from(self._memory, _TAKEN_AT)[0])

    @taken.setter
    def taken(self, value: int) -> None:
        _FLAG.pack_into(self._memory, _TAKEN_AT, value)

    def note_drained(self, taken: int, at: float) -> None:
        """Note that nothing was left for the worker at some time, with that many runs taken."""
        self._times[_DRAINED] = at
        _FLAG.pack_into(self._memory, _DRAINED_AT, taken + 1)

    def forget_drained(self) -> None:
        """Let the worker look again whether something is left."""
        _FLAG.pack_into(self._memory, _DRAINED_AT, 0)

    @property
    def drained_since(self) -> float:
        """Since when (monotonic) the worker has had no run, after it found nothing left to do.

        0 if it has one or may be about to get one. If two looks find the same time, it had no run
        at any time between them.
        """
        (drained,) = _FLAG.unpack_from(self._memory, _DRAINED_AT)
        return self._times[_DRAINED] if drained == self.taken + 1 else 0.0

    def hold(self) -> None:
        """Show, as long as this process runs this program, that it is there to mark starts."""
        # Locked by its descriptor, which ends when a body executes another program.
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def is_deserted(self) -> bool:
        """Return whether the program of the worker has ended; its process may still run."""
        if not self.registered:
            return False
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False  # It was removed, or no more files can be opened: nothing is known.
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(descriptor)

    def start(
        self, slot: int, run_id: str, claim_number: int, overdue_at: float, retry_after: float
    ) -> None:
        """Mark a start."""
        # All of it is zeroed and then written in order, so the state goes last: a mark that is half
        # written does not count.
        place = _HEADER_BYTES + slot * _SLOT_BYTES
        name = run_id.encode()
        _pack_slot(self._memory, place, name, claim_number, overdue_at, retry_after, STARTED)

    def end(self, slot: int) -> None:
        """Note that the body has ended; the mark stays until the end is recorded."""
        self._memory[_HEADER_BYTES + slot * _SLOT_BYTES + _STATE_AT] = ENDED

    def clear(self, slot: int) -> None:
        """Forget a mark: its end is durable."""
        self._memory[_HEADER_BYTES + slot * _SLOT_BYTES + _STATE_AT] = FREE

    def marks(self) -> Iterator[StartMark]:
        """Return all marks."""
        states = self._memory[_HEADER_BYTES + _STATE_AT :: _SLOT_BYTES]
        if not any(states):
            return
        for slot, state in enumerate(states):
            if state != FREE:
                place = _HEADER_BYTES + slot * _SLOT_BYTES
                run_id, claim_number, overdue_at, retry_after, _ = _SLOT.unpack_from(
                    self._memory, place
                )
                ended = state == ENDED
                yield StartMark(run_id.decode(), claim_number, overdue_at, retry_after, ended)

    def is_of_this_boot(self) -> bool:
        """Say whether the marks can be believed."""
        magic, boot, *_ = _HEADER.unpack_from(self._memory, 0)
        return bool(magic == _MAGIC and boot == boot_id())

    def remove(self) -> None:
        """Remove the file; mapped memory stays until it is closed."""
        self.path.unlink(missing_ok=True)

    def touch(self) -> None:
        """Show that the file is in use, to programs that clean up temporary folders by age."""
        with contextlib.suppress(OSError):
            os.utime(self.path)

    def close(self) -> None:
        """Unmap."""
        self._times.release()
        self._memory.close()


def start_marks_path(folder: Path, worker_id: str) -> Path:
    """Return the place of a worker's marks."""
    return folder / f"{worker_id}.slots"
