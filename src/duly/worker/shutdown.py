"""How a supervisor ends its worker processes: why, since when, and how each of them ended."""

import signal
from collections.abc import Iterable

from duly.clock import monotonic
from duly.events import (
    STOPPED,
    STOPPED_BY_SECOND_SIGNAL,
    EventBus,
    SupervisorStopping,
)
from duly.worker.process_lifetime import exit_text
from duly.worker.worker_process import SupervisedWorker

KILL_AFTER_GRACE = 2.0
"""How many seconds after the grace a process is killed that has not ended."""
_SIGNALS = {int(signal.SIGINT): "Ctrl-C"}

_ENDED_HERE = frozenset({0, -int(signal.SIGKILL)})
"""The exit statuses of a process that ended at the end of the grace, or was killed then."""


class Shutdown:
    """Begins once; the second signal ends what it waits for."""

    def __init__(self, bus: EventBus, grace: float) -> None:
        self._bus = bus
        self._grace = grace
        self._began_at: float | None = None
        self._is_forced = False

    @property
    def has_begun(self) -> bool:
        """Whether the worker processes have been told to end, or have ended by themselves."""
        return self._began_at is not None

    def begin(self, reason: str | None = None, running: int = 0) -> None:
        """Begin; without a `reason` that was logged already."""
        if self._began_at is not None:
            return
        self._began_at = monotonic()
        if reason is not None:
            self._bus.emit(SupervisorStopping(reason, running, self._grace))

    def begin_by_signal(self, number: int, children: Iterable[SupervisedWorker]) -> None:
        """Begin because a signal asked for it."""
        name = _SIGNALS.get(number) or signal.Signals(number).name
        self.begin(name, sum(child.running for child in children))

    def begin_when_done(self, *, is_spent: bool) -> None:
        """Begin because no process has work, or may begin any."""
        self.begin("max_tasks is reached" if is_spent else "nothing is left to do")

    def force(self) -> None:
        """Note that a second signal came: the processes are killed."""
        self._is_forced = True

    def is_overdue(self, now: float, since: float | None = None) -> bool:
        """Return whether a process that was told to end then has to be killed."""
        return self._is_grace_over(now - KILL_AFTER_GRACE, since)

    def _is_grace_over(self, now: float, since: float | None) -> bool:
        since = self._began_at if since is None else since
        return since is not None and now - since >= self._grace

    def reason_of(self, child: SupervisedWorker, status: int, *, is_idle: bool) -> str:
        """Return why a process ended."""
        if is_idle:
            return STOPPED
        if self._is_forced:
            return STOPPED_BY_SECOND_SIGNAL
        if status in _ENDED_HERE and self._is_grace_over(monotonic(), child.retired_at):
            return f"ended, since its runs did not end within the grace of {self._grace:g} s"
        return f"its process {exit_text(status)}"
