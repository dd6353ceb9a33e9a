"""Log lines that a worker has gathered and not written yet, in a file beside its marks.

A worker writes lines to the store twice a second. One that is killed leaves its last lines here,
and the process that recovers its runs on this machine writes them.
"""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

from duly.clock import MICROSECONDS, SystemClock, monotonic
from duly.core.record import WorkerRecord
from duly.limits import LEFT_FILES_SECONDS
from duly.store.ops.updates import RestoreLogs
from duly.worker.start_marks import StartMarks

Line = tuple[int, str, str]
"""Wall time, level and message."""


class LogSpool:
    """The file of one worker. What goes wrong with it costs no line and no run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_made = False
        self._is_empty = True

    def add(self, run_id: str, claim_number: int, line: Line) -> None:
        """Note a line that is to be written to the store."""
        self._append(_packed(run_id, claim_number, line))

    def keep(self, lines: Iterable[tuple[str, int, Line]]) -> None:
        """Forget all but these: the others are in the store."""
        if self._is_empty:
            return
        with suppress(OSError):
            os.truncate(self.path, 0)
            self._is_empty = True
            text = b"".join(_packed(*line) for line in lines)
            if text:
                self._append(text)

    def _append(self, text: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        made = 0 if self._is_made else os.O_CREAT | os.O_EXCL
        with suppress(OSError):
            descriptor = os.open(self.path, flags | made, 0o600)
            self._is_made, self._is_empty = True, False
            try:
                os.write(descriptor, text)
            finally:
                os.close(descriptor)


def log_spool_path(marks: Path) -> Path:
    """Return the place of the unwritten lines of the worker that has these marks."""
    return marks.with_suffix(".lines")


def remove_stale_files(folder: Path, list_workers: Callable[[], list[WorkerRecord]]) -> None:
    """Remove the files of workers that ended long ago and whose runs were recovered.

    While the store lists a worker as live, its runs have not been recovered, and that needs them.
    """
    left = [path for path in folder.glob("*.slots") if _is_old(path) and not _is_alive(path)]
    lines = folder.glob("*.lines")
    left += [path for path in lines if not path.with_suffix(".slots").exists() and _is_old(path)]
    if not left:
        return
    live = {worker.id for worker in list_workers() if worker.state == "live"}
    for path in left:
        if path.stem not in live:
            with suppress(OSError):
                log_spool_path(path).unlink(missing_ok=True)
                path.unlink(missing_ok=True)


def _is_old(path: Path) -> bool:
    long_ago = SystemClock().now() / MICROSECONDS - LEFT_FILES_SECONDS
    try:
        return path.stat().st_mtime < long_ago
    except OSError:
        return False


def _is_alive(marks: Path) -> bool:
    """Return whether a worker's marks tell that it lives, or tell nothing.

    The wall clock may have jumped, and each worker touches its own file in turn.
    """
    try:
        with closing(StartMarks(marks)) as slots:
            return slots.is_of_this_boot() and slots.deadline >= monotonic()
    except (OSError, ValueError):
        return True


def read_log_spool(path: Path) -> list[RestoreLogs]:
    """Return the lines of a worker that is dead, by run and claim; none if there is no file."""
    found: dict[tuple[str, int], list[Line]] = {}
    with suppress(OSError):
        for text in path.read_bytes().split(b"\n"):
            with suppress(ValueError):  # The last one may be cut off.
                run_id, claim_number, at, level, message = json.loads(text)
                found.setdefault((run_id, claim_number), []).append((at, level, message))
    return [RestoreLogs(*claim, tuple(lines)) for claim, lines in found.items()]


def _packed(run_id: str, claim_number: int, line: Line) -> bytes:
    return json.dumps([run_id, claim_number, *line]).encode() + b"\n"
