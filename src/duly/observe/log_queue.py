"""Writes the events of a process to its log, from a thread of its own.

A log can be slow, and a pipe that is not read blocks its writers for ever. No thread of the engine
may wait for that.
"""

import logging
import sys
import threading
from collections import deque

from duly.clock import MICROSECONDS, SystemClock
from duly.events import AttemptEnded, Event, LinesDropped, LogEntry, LoggedAttempt
from duly.limits import LOG_LINES_PER_SECOND, LOG_QUEUE_LINES
from duly.observe.logs import is_logged, log_event, logger

_TURN_SECONDS = 0.1
"""How long entries gather before some are written. This spares wake-ups of the thread."""
_LINES_PER_TURN = LOG_LINES_PER_SECOND // 10
"""Writing a line takes about as long as the engine takes for a run without work."""
_STOP_SECONDS = 2.0
"""How long a stop waits for the log."""
_ENTRIES = LOG_QUEUE_LINES * 6 // 5
"""The size of the queue. Runs that succeed leave a sixth of it to other entries."""


class LogQueue:
    """The entries of the log that are not written yet, in order. Drops and counts when full."""

    def __init__(self, *, failures: int = logging.ERROR) -> None:
        self._failures = failures
        """The level of the lines of runs that failed for good."""
        self._clock = SystemClock()
        self._lock = threading.Lock()
        self._owners: set[object] = set()
        self._thread: threading.Thread | None = None
        self._waiting: deque[tuple[LogEntry, float]] = deque()
        self._dropped = 0
        self._has_entries = threading.Event()
        self._ends = threading.Event()

    def wants_successes(self) -> bool:
        """Return whether successes have lines at the present log level."""
        return logger.isEnabledFor(logging.INFO)

    def has_room(self) -> bool:
        """Return whether successes can be added. After a drop they cannot until all is written."""
        return not self._dropped and len(self._waiting) < LOG_QUEUE_LINES

    def drop(self, lines: int) -> None:
        """Count lines that are not added because there is no room."""
        with self._lock:
            self._dropped += lines

    def add(self, event: Event | LoggedAttempt, at: float | None = None) -> None:
        """Take an event to be written, or count it if there is no room."""
        at = self._now() if at is None else at
        entry = event
        if isinstance(entry, AttemptEnded):
            entry = entry.summary()
            if not is_logged(entry, self._failures):
                return
            if entry.outcome == "returned" and not self.has_room():
                self.drop(1)
                return
        if self._thread is None:
            self._write(entry, at)
        elif len(self._waiting) < _ENTRIES:
            self._waiting.append((entry, at))
            if not self._has_entries.is_set():
                self._has_entries.set()
        else:
            self.drop(1)

    def start(self, owner: object) -> None:
        """Write on a thread of its own until each owner has called `stop`."""
        with self._lock:
            self._owners.add(owner)
            self._ends.clear()
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, name="duly-log", daemon=True)
                self._thread.start()

    def stop(self, owner: object) -> bool:
        """Write what is left. Return False if the log took too long for that."""
        with self._lock:
            self._owners.discard(owner)
            thread = self._thread
            if self._owners or thread is None:
                return True
            self._ends.set()
            self._has_entries.set()
        thread.join(_STOP_SECONDS)
        return not thread.is_alive()

    def _serve(self) -> None:
        while not self._has_ended():
            self._has_entries.wait()
            is_stopping = self._ends.wait(_TURN_SECONDS)
            self._has_entries.clear()
            waiting = len(self._waiting)
            for _ in range(waiting if is_stopping else min(waiting, _LINES_PER_TURN)):
                self._write(*self._waiting.popleft())
            if self._waiting:
                self._has_entries.set()
            else:
                self._report_dropped()

    def _report_dropped(self) -> None:
        with self._lock:
            dropped, self._dropped = self._dropped, 0
        if dropped:
            self._write(LinesDropped(dropped), self._now())

    def _has_ended(self) -> bool:
        """End the thread if nobody needs it and everything is written."""
        with self._lock:
            if self._owners or self._waiting:
                return False
            self._thread = None
            return True

    def _now(self) -> float:
        return self._clock.now() / MICROSECONDS

    def _write(self, entry: LogEntry, at: float) -> None:
        try:
            log_event(entry, at, failures=self._failures)
        except Exception:  # noqa: BLE001 - a filter of the application must not end this thread
            threading.excepthook(
                threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
            )
