"""Ends a worker whose beats reach the store while all of its other writes fail."""

from collections.abc import Callable

from duly.events import EventBus, WorkerGaveUp
from duly.store.protocol import Store

_LOOK_SECONDS = 0.5


class WriteMonitor:
    """A service: compares the beats of a worker with its other writes.

    A worker that beats keeps its runs. If it can record nothing, no other worker may take them.
    Such a worker gives up after a whole lease, so that its lease expires.
    """

    name = "writes"

    def __init__(
        self,
        store: Store,
        bus: EventBus,
        worker_id: str,
        beats_since: Callable[[], float | None],
        lease: float,
    ) -> None:
        self._store = store
        self._bus = bus
        self._worker_id = worker_id
        self._beats_since = beats_since
        self._lease = lease
        self.gave_up = False

    def tick(self) -> float:
        """Give up if, for a whole lease, beats succeeded and every other write failed."""
        failing = self._store.failing_writes()
        beating_since = self._beats_since()
        if failing is None or beating_since is None or self.gave_up:
            return _LOOK_SECONDS
        # By the last failure, not by the clock: a worker with nothing to write fails at nothing.
        if failing.until - max(failing.since, beating_since) > self._lease:
            self.gave_up = True
            self._bus.emit(WorkerGaveUp(self._worker_id, self._lease, failing.reason))
        return _LOOK_SECONDS
